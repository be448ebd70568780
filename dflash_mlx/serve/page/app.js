// The page: one chat on show, at most one answer running.

import * as api from "./api.js";
import { AnswerReader, newAnswer, numbers, numbersLine, passLine } from "./answer.js";
import {
  allChats, CUT, deleteAllChats, deleteChat, loadSettings, newChat, saveChat, saveSettings, title,
} from "./chats.js";
import { Colours, copyButton, make, MarkdownView } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const FRAME_MS = 50; // at least, between two showings of a running answer
const SAVE_MS = 1000;
const NUMBER_FIELDS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

let settings = loadSettings();
let chats = allChats();
let chat = chats[0] ?? newChat();
let models = [];
let running = null; // {chat, answer, controller}
let isLeaving = false;
let views = [];

// Messages

class MessageView {
  constructor(message) {
    this.message = message;
    this.node = make("article", message.role);
    this.text = make("div", "text");
    this.actions = make("p", "actions");
    if (message.role === "user") {
      this.node.ariaLabel = "You";
      this.text.textContent = message.content;
      this.actions.append(doButton("Edit", "edit"), copyButton("message"));
      this.node.append(this.text, this.actions);
      return;
    }
    this.node.ariaLabel = "Answer";
    this.thinking = make("details");
    this.summary = this.thinking.appendChild(make("summary"));
    const thought = this.thinking.appendChild(make("div", "text"));
    this.note = make("p", "note");
    this.note.role = "alert";
    this.strip = make("ol", "strip");
    this.strip.ariaLabel = "Tokens of each pass";
    this.numbers = make("span", "numbers");
    this.copy = copyButton("message");
    this.goOn = doButton("Continue", "goOn");
    this.actions.append(doButton("Retry", "retry"), this.goOn, this.copy, this.numbers);
    this.node.append(this.thinking, this.text, this.note, this.strip, this.actions);
    this.markdown = { thinking: new MarkdownView(thought), content: new MarkdownView(this.text) };
    this.update();
  }

  update() {
    const { message } = this;
    if (message.role === "user") return;
    for (const kind of ["thinking", "content"]) {
      const name = (pass) => passLine(message, pass);
      const colours = settings.colours ? new Colours(message.spans[kind], name) : null;
      this.markdown[kind].show(message[kind], colours);
    }
    this.thinking.hidden = !message.thinking;
    this.copy.hidden = !message.content;
    this.goOn.hidden = message.running || !message.content || message.finish === "stop"
      || message !== chat.messages.at(-1);
    const isThinking = message.running && !message.content;
    this.summary.textContent = isThinking
      ? "Thinking…" : `Thought for ${(message.thinkingSeconds ?? 0).toFixed(1)} s`;
    this.note.textContent = message.error ?? message.note ?? (message.finish === "length"
      ? "The answer ended at max tokens." : "");
    this.note.classList.toggle("error", Boolean(message.error));
    this.node.ariaBusy = String(message.running);
    this.numbers.textContent = message.running ? "" : numbersLine(message);
    this.#showStrip();
  }

  #showStrip() {
    const { passes } = this.message;
    this.strip.hidden = !settings.colours || !passes.length;
    if (this.strip.hidden) return;
    while (this.strip.childElementCount < passes.length) {
      const index = this.strip.childElementCount;
      const cell = this.strip.appendChild(make("li", `pass-${index % 6}`));
      cell.textContent = passes[index][0];
      cell.title = passLine(this.message, index);
    }
  }
}

function doButton(label, name) {
  const button = make("button", "quiet");
  button.textContent = label;
  button.dataset.do = name;
  return button;
}

function showChat() {
  views = chat.messages.map((message) => new MessageView(message));
  $("messages").replaceChildren(...views.map((view) => view.node));
  if (!views.length) {
    const hint = make("p", "hint");
    hint.textContent = "Chats stay in this browser.";
    $("messages").append(hint);
  }
  showList();
  toEnd();
}

function showList() {
  const items = chats.map((one) => {
    const item = make("li");
    const open = item.appendChild(make("button", "open"));
    open.textContent = title(one);
    open.dataset.open = one.id;
    if (one === chat) open.ariaCurrent = "true";
    const remove = item.appendChild(make("button", "quiet"));
    remove.textContent = "×";
    remove.ariaLabel = `Delete the chat: ${title(one)}`;
    remove.dataset.remove = one.id;
    return item;
  });
  $("chat-list").replaceChildren(...items);
  $("clear").disabled = !chats.length;
}

function showStatus() {
  const busy = Boolean(running);
  document.body.classList.toggle("busy", busy);
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("colours").ariaPressed = String(Boolean(settings.colours));
  document.body.classList.toggle("coloured", Boolean(settings.colours));
  if (busy) {
    $("numbers").textContent = numbersLine(running.answer) || "waiting for the first token";
    return;
  }
  const model = models.find(({ id }) => id === $("model").value);
  const drafter = model?.draft ? `drafter ${model.draft}` : "no drafter";
  const context = model?.max_model_len?.toLocaleString("en");
  $("numbers").textContent = model
    ? `${drafter} · mode ${model.mode} · context ${context} tokens` : "";
}

const scroller = document.querySelector("main");
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
const toEnd = () => scroller.scrollTo(0, scroller.scrollHeight);

function complain(text) {
  $("problem").textContent = text;
}

// Answers

function requestBody() {
  const { thinking, ...rest } = settings;
  const messages = chat.messages.filter(({ content }) => content)
    .map(({ role, content }) => ({ role, content }));
  if (chat.system) messages.unshift({ role: "system", content: chat.system });
  const body = { messages, stream: true, return_progress: true, return_passes: true };
  if ($("model").value) body.model = $("model").value;
  for (const name of NUMBER_FIELDS) if (rest[name] !== undefined) body[name] = rest[name];
  if (thinking === "on" || thinking === "off") {
    body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  } else if (thinking) {
    body.reasoning_effort = thinking;
  }
  return body;
}

async function answerChat(answer = newAnswer()) {
  complain("");
  const body = requestBody();
  const own = { chat, answer, controller: new AbortController() };
  running = own;
  Object.assign(answer, { running: true, finish: undefined, note: undefined, error: undefined });
  if (!chat.messages.includes(answer)) chat.messages.push(answer);
  if (!chats.includes(chat)) chats.unshift(chat);
  keep(chat);
  showChat();
  showStatus();
  if (document.activeElement === document.body) $("stop").focus(); // its button is gone
  $("spoken").textContent = "Answering";
  const reader = new AnswerReader(answer);
  let frame = 0;
  let saved = performance.now();
  let pause = FRAME_MS;
  const show = () => {
    frame = 0;
    const began = performance.now();
    showAnswer(answer);
    pause = Math.max(FRAME_MS, 4 * (performance.now() - began));
  };
  try {
    for await (const event of api.answer(body, own.controller.signal)) {
      reader.add(event);
      frame ||= setTimeout(show, pause);
      if (performance.now() - saved > SAVE_MS) {
        keep(own.chat);
        saved = performance.now();
      }
    }
  } catch (error) {
    if (error.name === "AbortError") answer.note = "Stopped.";
    else if (isLeaving) answer.note = CUT;
    else answer.error = error.message;
    if (error.status === 401) askForKey();
  }
  clearTimeout(frame);
  if (document.activeElement === $("stop")) scroller.focus();
  answer.running = false;
  delete answer.progress;
  running = null;
  keep(own.chat);
  showAnswer(answer);
  const { tokens } = numbers(answer);
  $("spoken").textContent = answer.error ? "" : answer.note ?? `Answered: ${tokens} tokens`;
}

function showAnswer(answer) {
  const follows = atEnd();
  views.find(({ message }) => message === answer)?.update();
  showStatus();
  if (follows) toEnd();
}

function keep(one) {
  if (!chats.includes(one)) return; // it was deleted while it was answered
  if (!saveChat(one)) complain("The browser has no room left for chats: delete some.");
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  fitPrompt();
  chat.messages.push({ role: "user", content: text });
  answerChat();
}

function edit(view) {
  const field = make("textarea");
  field.ariaLabel = "Edit the prompt";
  field.value = view.message.content;
  const actions = make("p", "actions");
  actions.append(doButton("Send again", "resend"), doButton("Cancel", "cancel"));
  view.node.replaceChildren(field, actions);
  view.field = field;
  field.focus();
}

function leaveEdit() {
  showChat();
  $("prompt").focus();
}

function resend(view) {
  const text = view.field.value.trim();
  if (!text) return;
  chat.messages.length = views.indexOf(view) + 1;
  view.message.content = text;
  answerChat();
}

const ACTIONS = {
  edit,
  goOn: ({ message }) => answerChat(message),
  resend,
  retry: (view) => {
    chat.messages.length = views.indexOf(view);
    answerChat();
  },
  cancel: leaveEdit,
};

$("messages").addEventListener("click", ({ target }) => {
  const view = views.find(({ node }) => node.contains(target));
  if (target.dataset.copy) copy(target, view);
  else if (view && target.dataset.do && !running) ACTIONS[target.dataset.do](view);
});

$("messages").addEventListener("keydown", (event) => {
  const view = views.find(({ field }) => field && field === event.target);
  if (!view || event.isComposing) return;
  const isEnter = event.key === "Enter" && !event.shiftKey;
  if (!isEnter && event.key !== "Escape") return;
  event.preventDefault();
  if (!isEnter) leaveEdit();
  else if (!running) resend(view);
});

async function copy(button, view) {
  const isCode = button.dataset.copy === "code";
  const text = isCode ? button.closest(".code").querySelector("code").textContent
    : view.message.content;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without https, browsers have no clipboard at other addresses than this machine's
    const field = document.body.appendChild(make("textarea", "unseen"));
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// Chats

function openChat(one) {
  chat = one;
  complain("");
  showPanel(false);
  showChat();
  $("prompt").focus();
}

function remove(one) {
  if (!confirm(`Delete the chat "${title(one)}"?`)) return;
  if (running?.chat === one) running.controller.abort();
  deleteChat(one);
  chats = chats.filter((other) => other !== one);
  if (chat === one) openChat(chats[0] ?? newChat());
  else showList();
}

function showPanel(isOpen) {
  document.body.classList.toggle("panel", isOpen);
  $("show-chats").ariaExpanded = String(isOpen);
}

$("show-chats").addEventListener("click", () => {
  showPanel(!document.body.classList.contains("panel"));
});
scroller.addEventListener("click", () => showPanel(false));
$("new-chat").addEventListener("click", () => openChat(newChat(chat.system)));
$("chat-list").addEventListener("click", ({ target }) => {
  const find = (id) => chats.find((one) => one.id === id);
  if (target.dataset.open) openChat(find(target.dataset.open));
  if (target.dataset.remove) remove(find(target.dataset.remove));
});
$("clear").addEventListener("click", () => {
  if (!confirm("Delete all chats of this browser?")) return;
  running?.controller.abort();
  deleteAllChats();
  chats = [];
  openChat(newChat(chat.system));
});
addEventListener("beforeunload", () => { // of a reload, too, which cuts the connection before it
  isLeaving = true;
  if (running) keep(running.chat);
  setTimeout(() => { isLeaving = false; }, 1000);
});
addEventListener("storage", () => { // another tab has changed the chats
  if (running) return;
  chats = allChats();
  if (!chat.messages.length) return showList();
  chat = chats.find(({ id }) => id === chat.id) ?? newChat(chat.system);
  showChat();
});

// Settings and the key

$("show-settings").addEventListener("click", () => {
  const form = $("settings").querySelector("form");
  form.elements.system.value = chat.system;
  for (const name of [...NUMBER_FIELDS, "thinking"]) {
    form.elements[name].value = settings[name] ?? "";
  }
  $("forget-key").hidden = !api.key.get();
  $("settings").showModal();
});
$("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  const { elements } = event.target;
  chat.system = elements.system.value.trim();
  for (const name of NUMBER_FIELDS) {
    settings[name] = elements[name].value === "" ? undefined : Number(elements[name].value);
  }
  settings.thinking = elements.thinking.value;
  saveSettings(settings);
  if (chat.messages.length) keep(chat);
  $("settings").close();
});
$("settings").querySelector("[data-close]").addEventListener("click", () => $("settings").close());
$("forget-key").addEventListener("click", () => {
  api.key.forget();
  $("settings").close();
  loadModels();
});

function askForKey() {
  $("login-problem").textContent = api.key.get() ? "The server does not take this key." : "";
  if (!$("login").open) $("login").showModal();
}
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key.set(event.target.elements.key.value.trim());
  event.target.reset();
  $("login").close();
  loadModels();
});

async function loadModels() {
  try {
    models = await api.models();
  } catch (error) {
    if (error.status === 401) askForKey();
    else complain(error.message);
    return;
  }
  const options = models.map(({ id }) => new Option(id, id, false, id === settings.model));
  $("model").replaceChildren(...options);
  showStatus();
}
$("model").addEventListener("change", () => {
  settings.model = $("model").value;
  saveSettings(settings);
  showStatus();
});

// Keys and the prompt

function fitPrompt() {
  const { style } = $("prompt");
  style.height = "auto";
  style.height = `${$("prompt").scrollHeight + 2}px`;
}
$("prompt").addEventListener("input", fitPrompt);
$("prompt").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !$("prompt").value && !running) {
    const last = views.findLast(({ message }) => message.role === "user");
    if (last) edit(last);
  }
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", () => running?.controller.abort());
$("colours").addEventListener("click", () => {
  settings.colours = !settings.colours;
  saveSettings(settings);
  views.forEach((view) => view.update());
  showStatus();
});

const KEYS = {
  "/": () => $("prompt").focus(),
  n: () => $("new-chat").click(),
  c: () => $("colours").click(),
  s: () => $("show-settings").click(),
};
document.addEventListener("keydown", (event) => {
  const isModal = document.querySelector("dialog[open]");
  if (event.isComposing || event.defaultPrevented || isModal) return;
  if (event.key === "Escape") {
    if (running) running.controller.abort();
    else if (document.body.classList.contains("panel")) showPanel(false);
    else document.activeElement.blur();
    return;
  }
  const isField = event.target.matches("textarea, input, select");
  if (isField || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

showChat();
showStatus();
loadModels();
