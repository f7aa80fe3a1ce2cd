/**
 * The client's side of `WS /ws/synthesize` (server/PROTOCOL.md): one utterance at a time, on a
 * socket that is opened when it is needed and kept for the next one.
 *
 * Every call returns at once; what cannot be sent yet waits its turn.  A connection that broke while
 * nothing was spoken is made again by the next utterance.
 *
 * A server that says nothing while something is awaited is asked for a sign of life, and given up
 * when there is none: speech itself may take minutes to come.
 */

import { explainUnreachable } from "./errors.js";

/** @typedef {import("./errors.js").Failure} Failure */

/**
 * @typedef {object} AudioStart
 * @property {number} sample_rate
 * @property {string | null} voice
 * @property {string} source
 *
 * @typedef {object} Stats the fields of `audio.done`
 * @property {string} ended
 * @property {number | null} ttfb_s
 * @property {number | null} rtf
 * @property {number} n_chunks
 * @property {number} audio_s
 * @property {string[]} warnings
 *
 * @typedef {object} Handlers
 * @property {(start: AudioStart) => void} onstart before the first audio of an utterance
 * @property {(samples: Int16Array) => void} onaudio
 * @property {(stats: Stats | null) => void} onend the utterance is complete
 * @property {(failure: Failure) => void} onfailure the utterance is over: no more will come of it
 */

const POLICY = 1008; // close code: the key is missing or wrong

const CLOSED = /** @type {Record<number, Failure>} */ ({
  [POLICY]: { code: "invalid_api_key", message: "The server asks for an API key." },
  1009: { code: "payload_too_large", message: "The server takes no message as long as this." },
  1012: { code: "shutting_down", message: "The server is shutting down." },
  1013: { code: "busy", message: "The server has too many connections. Try again in a moment." },
});

const PIECE = 16384; // characters of text in one message, at most 96 KiB of the server's 256

export const ANSWER_S = 20; // the longest a server is waited for without a sign of life

export class SpeechClient {
  /**
   * @param {URL} server its base address, which ends with a slash
   * @param {Handlers} handlers
   * @param {() => string} key the API key, or "" for none; asked at every connect
   * @param {number} answerTimeout seconds; a server that is silent for twice as long is given up
   */
  constructor(server, handlers, key = () => "", answerTimeout = ANSWER_S) {
    if (!(answerTimeout > 0)) {
      throw new RangeError(`answerTimeout ${answerTimeout}: expected seconds, above 0`);
    }
    this._server = server;
    this._url = new URL("ws/synthesize", server);
    this._url.protocol = server.protocol === "https:" ? "wss:" : "ws:";
    this._handlers = handlers;
    this._key = key;
    this._answerMs = 1000 * answerTimeout;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._watch = undefined; // runs while something is awaited
    this._pinged = false; // nothing has come since a sign of life was asked for
    /** @type {WebSocket | null} */
    this._socket = null;
    /** @type {string[]} */
    this._outbox = [];
    this._active = false; // an utterance has begun and is not over
    this._sent = false; // something of it has left
    this._written = false; // it has text: the server has something to answer
    this._explaining = false; // why there is no connection is being found out
    this._started = false; // its audio.start has come
    this._complete = false; // its input.done is on its way
    this._cancelling = false; // until audio.cancelled: what comes is about the past
    /** @type {Stats | null} */
    this._stats = null;
  }

  /** Whether an utterance is being written or made. */
  get active() {
    return this._active;
  }

  /** Open the connection ahead of its first use, quietly. */
  connect() {
    if (this._socket !== null || this._explaining) return;
    let socket;
    try {
      socket = new WebSocket(this._url);
    } catch (error) {
      // A page of https may open no socket to a server of http.
      const message = `${this._url.href} cannot be opened from this page: ${error}`;
      queueMicrotask(() => this._lost({ code: "insecure_server", message }));
      return;
    }
    socket.binaryType = "arraybuffer";
    this._socket = socket;
    let opened = false;
    socket.onopen = () => {
      if (socket !== this._socket) return;
      opened = true;
      let key;
      try {
        key = this._key();
      } catch (error) {
        this._giveUp({ code: "key_failed", message: `The key could not be had: ${error}` });
        return;
      }
      if (key) socket.send(JSON.stringify({ type: "session.auth", key }));
      this._drain();
      this._alive();
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this._socket) return;
      const answer = understood(data);
      if (answer === null) this._giveUp({ code: "unexpected_answer", message: NO_KAZEIA });
      else if (!(answer instanceof Int16Array)) this._received(answer);
      else if (this._started && !this._cancelling) this._handlers.onaudio(answer);
      // What still comes of a cancelled utterance does not put off the answer to the cancel.
      if (socket === this._socket && !this._cancelling) this._alive();
    };
    socket.onclose = (event) => {
      if (socket === this._socket) this._closed(event.code, opened);
    };
    this._alive();
  }

  /** Give the connection up; the next utterance opens another. */
  disconnect() {
    this._drop();
    this._forget();
  }

  /** Begin an utterance.  @param {Record<string, unknown>} config fields of `session.config` */
  begin(config) {
    this.cancel();
    this._active = true;
    this._sent = false;
    this._written = false;
    this._complete = false;
    this._send("session.config", config);
  }

  /** @param {string} text appended to the utterance as it is */
  text(text) {
    if (!this._active || text === "") return;
    this._written = true;
    for (const piece of pieces(text)) this._send("input.text", { text: piece });
  }

  /** Have what was written so far spoken, without waiting for the rest of a sentence. */
  flush() {
    if (this._active) this._send("input.flush");
  }

  /** The utterance's text is complete. */
  done() {
    if (!this._active || this._complete) return;
    this._complete = true;
    this._send("input.done");
  }

  /** Give the utterance up; nothing more is heard of it. */
  cancel() {
    if (!this._active) return;
    this._active = false;
    this._started = false;
    this._stats = null;
    this._outbox = [];
    if (this._socket?.readyState === WebSocket.OPEN) {
      this._socket.send(JSON.stringify({ type: "input.cancel" }));
      if (this._cancelling) return;
      this._cancelling = true;
    }
    this._alive();
  }

  /** @param {string} type @param {Record<string, unknown>} [fields] */
  _send(type, fields = {}) {
    this._outbox.push(JSON.stringify({ type, ...fields }));
    this.connect();
    this._drain();
    if (this._watch === undefined) this._alive();
  }

  _drain() {
    if (this._cancelling || this._socket?.readyState !== WebSocket.OPEN) return;
    for (const message of this._outbox.splice(0)) {
      this._socket.send(message);
      this._sent = true;
    }
  }

  /** Whether something has to come from the server. */
  get _awaiting() {
    if (this._cancelling) return true;
    return this._active && (this._written || this._socket?.readyState !== WebSocket.OPEN);
  }

  /** There is a sign of life, or a reason to wait for one from now on. */
  _alive() {
    clearTimeout(this._watch);
    this._watch = undefined;
    this._pinged = false;
    if (this._awaiting) this._watch = setTimeout(() => this._silent(), this._answerMs);
  }

  /** Nothing has come for a while. */
  _silent() {
    this._watch = undefined;
    if (!this._awaiting || this._explaining) return;
    const open = this._socket?.readyState === WebSocket.OPEN;
    if (open && !this._pinged) {
      this._socket?.send(JSON.stringify({ type: "ping" }));
      this._watch = setTimeout(() => this._silent(), this._answerMs);
      this._pinged = true;
    } else if (this._cancelling && this._active) {
      this._drop(); // the next utterance need not suffer from the end of the last
      this._cancelling = false;
      this.connect();
    } else {
      this._giveUp({ code: "no_answer", message: "The server does not answer." });
    }
  }

  _received(/** @type {any} */ message) {
    if (message.type === "audio.cancelled") {
      this._cancelling = false;
      this._drain();
    } else if (message.type === "error" && message.code === "invalid_api_key") {
      this.disconnect();
      this._handlers.onfailure(message);
    } else if (this._cancelling || !this._active) {
      return;
    } else if (message.type === "audio.start") {
      this._started = true;
      this._handlers.onstart(message);
    } else if (message.type === "audio.done") {
      this._stats = message;
    } else if (message.type === "session.done" && message.utterance_index !== null) {
      const stats = this._stats;
      // One that ended before its text did leaves the server waiting for the rest.
      if (this._complete) this._forgetUtterance();
      else this.cancel();
      this._handlers.onend(stats);
    } else if (message.type === "error") {
      this._fail(message);
    }
  }

  _fail(/** @type {Failure} */ failure) {
    // The server may go on, under other conditions than were asked for, or wait for more text.
    this.cancel();
    this._handlers.onfailure(failure);
  }

  /** @param {number} code @param {boolean} opened whether the connection ever stood */
  _closed(code, opened) {
    const known = CLOSED[code];
    this._socket = null;
    if (known !== undefined) {
      this._lost(known, code === POLICY);
    } else if (!this._active) {
      this._forget();
    } else if (!opened) {
      void this._explain();
    } else if (!this._sent) {
      this._cancelling = false;
      this.connect(); // it had broken before this utterance began
    } else {
      this._lost({ code: "connection_lost", message: "The connection to the server was lost." });
    }
  }

  async _explain() {
    const outbox = this._outbox;
    this._explaining = true;
    const failure = await explainUnreachable(this._server, this._answerMs);
    this._explaining = false;
    if (!this._active) return;
    if (this._outbox === outbox) this._lost(failure);
    else this.connect(); // another utterance has begun meanwhile
  }

  /** The connection is of no use.  @param {Failure} failure */
  _giveUp(failure) {
    this._drop();
    this._lost(failure);
  }

  _drop() {
    const socket = this._socket;
    this._socket = null;
    socket?.close();
  }

  /** @param {Failure} failure @param {boolean} [always] tell it when nothing is spoken, too */
  _lost(failure, always = false) {
    const told = this._active || always;
    this._forget();
    if (told) this._handlers.onfailure(failure);
  }

  _forget() {
    this._cancelling = false;
    this._forgetUtterance();
  }

  _forgetUtterance() {
    this._active = false;
    this._started = false;
    this._stats = null;
    this._outbox = [];
    this._alive();
  }
}

const NO_KAZEIA = "What answers there does not keep to the speech protocol.";

/**
 * A message or samples; null where they are neither.
 *
 * @param {string | ArrayBuffer} data
 * @returns {{ type: string } | Int16Array | null}
 */
function understood(data) {
  if (typeof data !== "string") return data.byteLength % 2 === 0 ? new Int16Array(data) : null;
  let message;
  try {
    message = JSON.parse(data);
  } catch {
    return null;
  }
  const { type, code, message: told, sample_rate: rate } = message ?? {};
  if (typeof type !== "string") return null;
  if (type === "audio.start" && !(rate > 0)) return null;
  if (type === "error" && (typeof code !== "string" || typeof told !== "string")) return null;
  return message;
}

/** A text in parts that messages hold, each of whole code points.  @param {string} text */
function pieces(text) {
  const found = [];
  for (let start = 0; start < text.length; ) {
    let end = start + PIECE;
    if (end < text.length && /[\uD800-\uDBFF]/.test(text[end - 1])) end -= 1;
    found.push(text.slice(start, end));
    start = end;
  }
  return found;
}
