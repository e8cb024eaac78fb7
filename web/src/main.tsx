import { render } from "preact";
import { App } from "./app";
import { bindAddress } from "./state";
import "./style.css";

bindAddress();
render(<App />, document.getElementById("page")!);
