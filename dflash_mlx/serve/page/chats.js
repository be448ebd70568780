// Chats and settings in the browser's localStorage, each chat under a key of its own.

const CHAT = "dflash.chat.";
const SETTINGS = "dflash.settings";
export const CUT = "Cut by a reload.";

export function newChat(system = "") {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, system, messages: [], changed: Date.now() };
}

export function title(chat) {
  const first = chat.messages[0]?.content.trim().split("\n")[0] ?? "";
  return first.length > 60 ? `${first.slice(0, 59)}…` : first || "New chat";
}

// The last changed one first. What a closed tab left running has stopped.
export function allChats() {
  const chats = [];
  for (const name of Object.keys(localStorage).filter((name) => name.startsWith(CHAT))) {
    const chat = read(name);
    if (!Array.isArray(chat?.messages)) continue;
    for (const message of chat.messages) {
      if (message.running) Object.assign(message, { running: false, note: CUT });
    }
    chats.push(chat);
  }
  return chats.sort((one, other) => other.changed - one.changed);
}

// False if the browser has no room left for it.
export function saveChat(chat) {
  chat.changed = Date.now();
  return write(CHAT + chat.id, chat);
}

export function deleteChat(chat) {
  localStorage.removeItem(CHAT + chat.id);
}

export function deleteAllChats() {
  Object.keys(localStorage).filter((name) => name.startsWith(CHAT))
    .forEach((name) => localStorage.removeItem(name));
}

export const loadSettings = () => read(SETTINGS) ?? {};
export const saveSettings = (settings) => write(SETTINGS, settings);

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
