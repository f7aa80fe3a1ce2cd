/** Speech from a Kazeia server on any web page; README.md tells how. */

export { SpeechClient } from "./client.js";
export { SpeechError } from "./errors.js";
export { Player } from "./player.js";
export { Recording } from "./recording.js";
export { Speech, Utterance } from "./speech.js";
