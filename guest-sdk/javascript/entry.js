import * as host from "penstock:stage/host@0.1.0";

import { transform as connected } from "./penstock_guest.js";
import "./stage.js";

export const transform = connected(host);
