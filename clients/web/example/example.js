// From the server itself it would be: import { Speech } from "http://127.0.0.1:8080/kazeia.js";
import { Speech } from "../kazeia/kazeia.js";

const element = (id) => document.getElementById(id);
const WORD_MS = 150;

let speech = null; // made anew when another server or key is entered
let address = "";

function current() {
  const wanted = `${element("server").value} ${element("key").value}`;
  if (speech !== null && wanted === address) return speech;
  void speech?.close();
  address = wanted;
  speech = new Speech(element("server").value, {
    key: element("key").value,
    volume: element("volume").valueAsNumber,
  });
  const say = (text) => { element("status").textContent = text; };
  let underruns = 0;
  let first = "";
  speech.addEventListener("firstaudio", ({ detail }) => {
    underruns = 0;
    first = `first sound after ${(detail.seconds * 1000).toFixed(0)} ms`;
    say(`Speaking: ${first}`);
  });
  speech.addEventListener("underrun", ({ detail }) => { underruns = detail.count; });
  speech.addEventListener("done", ({ detail }) => {
    const seconds = detail === null ? "" : `${detail.audio_s.toFixed(1)} s of speech, `;
    over(`Done: ${seconds}${first}, ${underruns} underruns`);
  });
  speech.addEventListener("cancelled", () => over("Stopped"));
  speech.addEventListener("error", ({ detail }) => { over(""); complain(detail); });
  speech.addEventListener("blocked", () => say("Click anywhere: the browser waits for it"));
  speech.addEventListener("soundless", ({ detail }) => complain(detail));
  return speech;
}

function over(text) {
  element("status").textContent = text;
  element("stop").disabled = true;
}

function complain(error) {
  element("error").textContent = `${error.message} (${error.code ?? error.name})`;
}

/** Speak what `text` gives; options as in the form. */
function speak(text) {
  element("error").textContent = "";
  try {
    const voice = element("voice").value;
    current().speak(text, voice === "" ? {} : { voice });
    element("status").textContent = "Waiting for the first sound…";
    element("stop").disabled = false;
  } catch (error) {
    complain(error); // the address is none
  }
}

/** The text as a language model would write it: bit by bit. */
async function* words() {
  for (const word of element("text").value.match(/\S+\s*/g) ?? []) {
    yield word;
    await new Promise((resolve) => setTimeout(resolve, WORD_MS));
  }
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  speak(element("text").value);
});
element("write").addEventListener("click", () => speak(words()));
element("stop").addEventListener("click", () => speech?.cancel());
element("volume").addEventListener("input", () => {
  if (speech !== null) speech.volume = element("volume").valueAsNumber;
});
element("load").addEventListener("click", async () => {
  element("error").textContent = "";
  try {
    const { voices } = await current().voices();
    const options = voices.map(({ id, name }) => new Option(name, id));
    element("voice").replaceChildren(new Option("the server's own", ""), ...options);
    element("status").textContent = `${voices.length} voices`;
  } catch (error) {
    complain(error);
  }
});
