// One answer: its text, the passes that produced it, and its numbers.
//
// passes: [tokens, drafted, accepted] of each pass; the first one is the end of the prompt.
// spans: for thinking and content, [end, pass] of each run of characters that one pass produced.

export function newAnswer() {
  return {
    role: "assistant", content: "", thinking: "", passes: [], running: true,
    spans: { thinking: [], content: [] },
  };
}

export class AnswerReader {
  #answer;
  #began = performance.now();
  #first = 0; // when the first token came

  constructor(answer) {
    this.#answer = answer;
  }

  add(event) {
    const answer = this.#answer;
    const now = performance.now();
    if (event.prompt_progress) answer.progress = event.prompt_progress;
    const choice = event.choices?.[0];
    const pass = event.dflash?.pass;
    const thinking = choice?.delta.reasoning_content ?? "";
    const content = choice?.delta.content ?? "";
    if (pass) {
      this.#first ||= now;
      answer.firstSeconds = (this.#first - this.#began) / 1000;
      answer.passes.push([pass.tokens, pass.drafted, pass.accepted]);
      answer.seconds = (now - this.#first) / 1000;
      delete answer.progress;
    }
    this.#append("thinking", thinking);
    if (thinking) answer.thinkingSeconds = (now - this.#began) / 1000;
    this.#append("content", content);
    if (choice?.finish_reason) answer.finish = choice.finish_reason;
    if (event.timings) answer.timings = event.timings;
  }

  #append(kind, text) {
    if (!text) return;
    const answer = this.#answer;
    const pass = Math.max(0, answer.passes.length - 1);
    answer[kind] += text;
    const spans = answer.spans[kind];
    if (spans.at(-1)?.[1] === pass) spans.at(-1)[0] = answer[kind].length;
    else spans.push([answer[kind].length, pass]);
  }
}

// Numbers of an answer, the server's own as soon as it has sent them. tau: tokens per pass after the
// prompt, with drafts or without.
export function numbers(answer) {
  const sum = (list, index) => list.reduce((total, pass) => total + pass[index], 0);
  const verified = answer.passes.filter((pass) => pass[1]);
  const tokens = sum(answer.passes, 0);
  const timings = answer.timings;
  return {
    tokens,
    rate: timings?.predicted_per_second ?? (answer.seconds ? (tokens - 1) / answer.seconds : 0),
    tau: verified.length
      ? (tokens - answer.passes[0][0]) / Math.max(1, answer.passes.length - 1)
      : null,
    acceptance: verified.length ? sum(verified, 2) / sum(verified, 1) : null,
  };
}

export function numbersLine(answer) {
  if (answer.progress && !answer.passes.length) {
    const { processed, total } = answer.progress;
    return `reading the prompt: ${count(processed)} of ${count(total)} tokens`;
  }
  const { tokens, rate, tau, acceptance } = numbers(answer);
  if (!tokens) return "";
  const parts = [`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`];
  if (rate) parts.push(`${rate.toFixed(1)} tok/s`);
  if (tau === null) parts.push("no drafts");
  else parts.push(`τ ${tau.toFixed(2)}`, `accept ${Math.round(100 * acceptance)}%`);
  if (answer.timings) {
    const { prompt_n, cache_n } = answer.timings;
    const cached = cache_n ? ` + ${count(cache_n)} cached` : "";
    parts.push(`prompt ${count(prompt_n)} new${cached}`);
    if (answer.firstSeconds) parts.push(`first token after ${answer.firstSeconds.toFixed(1)} s`);
  }
  return parts.join(" · ");
}

export function passLine(answer, index) {
  const [tokens, drafted, accepted] = answer.passes[index] ?? [0, 0, 0];
  const made = `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
  if (!index) return `end of the prompt: ${made}`;
  const drafts = drafted ? `${accepted} of ${drafted} drafts accepted` : "no drafts";
  return `pass ${index}: ${made}, ${drafts}`;
}

function count(number) {
  return number.toLocaleString("en");
}
