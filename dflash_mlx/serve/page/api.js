// The server's API: the key, the models, and the events of a streamed answer.

const KEY = "dflash.key"; // in sessionStorage, so only this tab has it

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

// A header holds bytes: those of the key in UTF-8.
function headers() {
  const bytes = new TextEncoder().encode(key.get() ?? "");
  const result = { "Content-Type": "application/json" };
  if (bytes.length) result.Authorization = `Bearer ${String.fromCharCode(...bytes)}`;
  return result;
}

async function request(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, {
      ...options, headers: headers(), cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => ({}));
  throw new ApiError(body.error?.message ?? `The server answered with status ${reply.status}.`,
    reply.status);
}

export async function models() {
  return (await (await request("v1/models")).json()).data;
}

// The events of an answer; the last one comes before the server's [DONE].
export async function* answer(body, signal) {
  const reply = await request("v1/chat/completions",
    { method: "POST", body: JSON.stringify(body), signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const frames = (held + value).split("\n\n");
      held = frames.pop();
      for (const frame of frames) {
        if (!frame.startsWith("data: ")) continue; // a comment that keeps the connection open
        const data = frame.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message);
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError("The connection to the server was lost.");
}
