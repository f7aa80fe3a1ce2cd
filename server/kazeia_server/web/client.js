/**
 * The client's side of `WS /ws/synthesize` (server/PROTOCOL.md): one utterance at a time, on a
 * socket that is opened when it is needed and kept for the next one.
 *
 * Every call returns at once; what cannot be sent yet waits its turn.
 */

/**
 * @typedef {{message: string, code: string, retry_after_s?: number}} Failure
 *
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
  [POLICY]: { code: "unauthorized", message: "The server asks for an API key." },
  1012: { code: "shutting_down", message: "The server is shutting down." },
  1013: { code: "busy", message: "The server has too many connections. Try again in a moment." },
});

export class SpeechClient {
  /**
   * @param {URL} url of the WebSocket
   * @param {Handlers} handlers
   * @param {() => string} key the API key, or "" for none; asked at every connect
   */
  constructor(url, handlers, key = () => "") {
    this._url = url;
    this._handlers = handlers;
    this._key = key;
    /** @type {WebSocket | null} */
    this._socket = null;
    /** @type {string[]} */
    this._outbox = [];
    this._active = false; // an utterance has begun and is not over
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
    if (this._socket !== null) return;
    const socket = new WebSocket(this._url);
    socket.binaryType = "arraybuffer";
    this._socket = socket;
    let opened = false;
    socket.onopen = () => {
      opened = true;
      const key = this._key();
      if (key !== "") socket.send(JSON.stringify({ type: "session.auth", key }));
      this._drain();
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this._socket) return;
      if (typeof data === "string") this._receive(JSON.parse(data));
      else if (this._started && !this._cancelling) this._handlers.onaudio(new Int16Array(data));
    };
    socket.onclose = (event) => {
      if (socket === this._socket) this._closed(event.code, opened);
    };
  }

  /** Give the connection up; the next utterance opens another. */
  disconnect() {
    const socket = this._socket;
    this._socket = null;
    this._forget();
    socket?.close();
  }

  /** Begin an utterance.  @param {Record<string, unknown>} config fields of `session.config` */
  begin(config) {
    this.cancel();
    this._active = true;
    this._complete = false;
    this._send("session.config", config);
  }

  /** @param {string} text appended to the utterance as it is */
  text(text) {
    if (this._active && text !== "") this._send("input.text", { text });
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
      this._cancelling = true;
    }
  }

  /** @param {string} type @param {Record<string, unknown>} [fields] */
  _send(type, fields = {}) {
    this._outbox.push(JSON.stringify({ type, ...fields }));
    this.connect();
    this._drain();
  }

  _drain() {
    if (this._cancelling || this._socket?.readyState !== WebSocket.OPEN) return;
    for (const message of this._outbox.splice(0)) this._socket.send(message);
  }

  _receive(/** @type {any} */ message) {
    if (message.type === "audio.cancelled") {
      this._cancelling = false;
      this._drain();
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
    const wasActive = this._active;
    this._socket = null;
    this._forget();
    if (!wasActive && code !== POLICY) return;
    const lost = opened ? "The connection to the server was lost." : "The server cannot be reached.";
    this._handlers.onfailure(CLOSED[code] ?? { code: "connection_lost", message: lost });
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
  }
}
