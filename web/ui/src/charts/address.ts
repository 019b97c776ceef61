// Settings of charts in the address of their page: a link shows the same charts.

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

/** Gives the charts inside a component another address than that of the page. */
export const provideAddress = (address: Address) => setContext(KEY, address)

/** The address that charts read and change. */
export const addressOf = () => getContext<Address | undefined>(KEY) ?? PAGE
