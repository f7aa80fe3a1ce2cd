/** What can go wrong between a page and its server. */

/**
 * @typedef {object} Failure
 * @property {string} message for people
 * @property {string} code for programs
 * @property {number} [retry_after_s] where waiting helps
 * @property {number} [status] of an HTTP answer
 */

/** `code` is one of server/PROTOCOL.md, or of those in the README of this package. */
export class SpeechError extends Error {
  /** @param {Failure} failure */
  constructor(failure) {
    super(failure.message);
    this.name = "SpeechError";
    this.code = failure.code;
    /** @type {number | null} seconds after which another try is sensible */
    this.retryAfter = failure.retry_after_s ?? null;
    /** @type {number | null} HTTP status, where an HTTP request failed */
    this.status = failure.status ?? null;
  }
}

/**
 * Why a connection could not be made.  Browsers tell a page nothing about a refusal by a server of
 * another origin; whether that server can be reached at all is found out with a request whose
 * answer the page may not read.
 *
 * @param {URL} server
 * @param {number} timeoutMs of each request
 * @returns {Promise<Failure>}
 */
export async function explainUnreachable(server, timeoutMs) {
  const unreachable = { code: "unreachable", message: "The server cannot be reached." };
  if (server.origin === location.origin) return unreachable;
  const health = new URL("health", server);
  if (await answers(health, "cors", timeoutMs)) {
    const message = `${server.origin} answers, but no WebSocket to it can be opened: a proxy in front of it may not pass them on.`;
    return { code: "no_websocket", message };
  }
  if (await answers(health, "no-cors", timeoutMs)) {
    const message = `${server.origin} does not let pages of ${location.origin} use it: its operator can allow them by KZTTS_CORS_ORIGINS.`;
    return { code: "forbidden_origin", message };
  }
  return { code: "unreachable", message: `The server ${server.origin} cannot be reached.` };
}

/** @param {URL} url @param {RequestMode} mode @param {number} timeoutMs */
async function answers(url, mode, timeoutMs) {
  try {
    await requested(url, { mode, cache: "no-store", credentials: "omit" }, timeoutMs);
    return true;
  } catch {
    return false;
  }
}

/**
 * The text of an answer with the answer itself; rejects with an AbortError where it takes too long.
 *
 * @param {URL} url @param {RequestInit} options @param {number} timeoutMs
 */
export async function requested(url, options, timeoutMs) {
  const controller = new AbortController();
  const timer = setTimeout(() => controller.abort(), timeoutMs);
  try {
    const response = await fetch(url, { ...options, signal: controller.signal });
    return { response, text: await response.text() };
  } finally {
    clearTimeout(timer);
  }
}
