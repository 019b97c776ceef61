/** Start of all addresses of the API. */
export const BASE = '/api/v1'

/** Answers by address that the first script has requested, before the code that uses them was loaded. Each is used once. */
export const ahead = new Map<string, Promise<Response>>()
