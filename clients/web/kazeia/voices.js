/** The list of voices: `GET /v1/voices`. */

import { SpeechError, explainUnreachable, requested } from "./errors.js";

/**
 * @param {URL} server
 * @param {() => string} askKey
 * @param {number} timeoutMs
 * @returns {Promise<any>} the answer's body
 * @throws {SpeechError}
 */
export async function readVoices(server, askKey, timeoutMs) {
  let key;
  try {
    key = askKey();
  } catch (error) {
    throw new SpeechError({ code: "key_failed", message: `The key could not be had: ${error}` });
  }
  const headers = key ? { authorization: `Bearer ${key}` } : undefined;
  let answer;
  try {
    const url = new URL("v1/voices", server);
    answer = await requested(url, { headers, cache: "no-store" }, timeoutMs);
  } catch (error) {
    throw new SpeechError(await explained(server, error, timeoutMs));
  }
  const { response, text } = answer;
  const body = parsed(text);
  if (response.ok && Array.isArray(body?.voices)) return body;
  const { status } = response;
  const { code, message = `HTTP status ${status}` } = body?.error ?? {};
  if (!response.ok && typeof code === "string") throw new SpeechError({ code, message, status });
  const type = response.headers.get("content-type") ?? "without a type";
  throw new SpeechError({
    code: "unexpected_answer",
    message: `HTTP status ${status}, ${type}: expected a list of voices in JSON`,
    status,
  });
}

/** @param {URL} server @param {unknown} error @param {number} timeoutMs */
async function explained(server, error, timeoutMs) {
  if (error instanceof DOMException && error.name === "AbortError") {
    return { code: "no_answer", message: "The server does not answer." };
  }
  const failure = await explainUnreachable(server, timeoutMs);
  if (failure.code !== "no_websocket") return failure;
  const message = `${server.origin} answers, but what it says of its voices cannot be read.`;
  return { code: "unexpected_answer", message };
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
