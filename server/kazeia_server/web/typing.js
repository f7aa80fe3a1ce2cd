/** Sends a text while it is being written: what is complete at once, the last word later. */

// A word is complete when something follows that is no part of it; what may stand inside a word or
// a number (an apostrophe, a point) does not count.  Scripts written without spaces have no such
// mark: each of their characters counts as complete.
const COMPLETE =
  /[\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}、。！？，；：…!?;()"«»]/u;
const LOOK_BACK = 200; // characters; longer words may wait

/** How much of `text`, from its start, consists of complete words. */
export function completeLength(/** @type {string} */ text) {
  let end = text.length;
  for (const char of Array.from(text.slice(-LOOK_BACK)).reverse()) {
    if (COMPLETE.test(char)) return end;
    end -= char.length;
  }
  return 0;
}

/** Whether a writer who pauses here has probably come to the end of a sentence. */
export function endsSentence(/** @type {string} */ text) {
  return /[.!?…。！？]["'”’»)]*$/u.test(text.slice(-LOOK_BACK));
}

export class TypingFeed {
  /** @param {(text: string) => void} send */
  constructor(send) {
    this._send = send;
    this._sent = "";
  }

  /** What has been sent so far, or counts as sent. */
  get sent() {
    return this._sent;
  }

  /** Everything in `text` counts as sent: only what is added to it will be. */
  reset(/** @type {string} */ text) {
    this._sent = text;
  }

  /** Whether something of `text` has not been sent. */
  pending(/** @type {string} */ text) {
    return text.startsWith(this._sent) && text.length > this._sent.length;
  }

  /**
   * Send what is new and complete.
   *
   * @param {string} text the whole text as it now stands
   * @param {number} caret where it was edited
   * @param {boolean} all send the last word, too
   * @returns {boolean} false: text that has been sent was changed; it cannot be taken back, and
   *   what comes after `caret` counts as new
   */
  update(text, caret, all) {
    const kept = text.startsWith(this._sent);
    if (!kept) this._sent = text.slice(0, caret);
    const rest = text.slice(this._sent.length);
    const ready = all ? rest : rest.slice(0, completeLength(rest));
    if (ready !== "") {
      this._sent += ready;
      this._send(ready);
    }
    return kept;
  }
}
