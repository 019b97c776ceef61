// Settings of charts in the address of their page, so that a link shows the same charts.

import { getContext, setContext } from 'svelte'

import { place, setQuery } from '../app/router.svelte'

export interface Address {
  readonly query: URLSearchParams
  set: (changes: Record<string, string | null>) => void
}

const KEY = Symbol('address')
const PAGE: Address = {
  get query() {
    return place.query
  },
  set: setQuery,
}

/** Makes the charts inside a component use `address` instead of the page's address. */
export const provideAddress = (address: Address) => setContext(KEY, address)

/** Address that the calling chart reads and changes. */
export const addressOf = () => getContext<Address | undefined>(KEY) ?? PAGE
