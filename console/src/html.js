// The page's parts are functions that give what `html` makes. No text becomes markup.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
