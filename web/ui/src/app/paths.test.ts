import { describe, expect, it } from 'vitest'

import { changed, find, match } from './paths'

describe('match', () => {
  it('gives the values of named places, decoded', () => {
    expect(match('/runs/{run}/stages/{stage}', '/runs/01a/stages/2%3Adecode')).toEqual({ run: '01a', stage: '2:decode' })
  })

  it('wants as many pieces as the pattern has', () => {
    expect(match('/runs/{run}', '/runs')).toBeNull()
    expect(match('/runs/{run}', '/runs/a/logs')).toBeNull()
  })

  it('takes a slash at the end for nothing, and an empty place for a miss', () => {
    expect(match('/runs', '/runs/')).toEqual({})
    expect(match('/', '/')).toEqual({})
    expect(match('/runs/{run}/logs', '/runs//logs')).toBeNull()
  })

  it('refuses a piece that cannot be decoded instead of throwing', () => {
    expect(match('/modules/{name}', '/modules/%E0%A4%A')).toBeNull()
  })
})

describe('find', () => {
  const routes = [{ path: '/runs/{run}' }, { path: '/runs/new' }, { path: '/modules/{name}/{version}' }]

  it('prefers a path without named places, wherever it stands', () => {
    expect(find(routes, '/runs/new')).toEqual({ route: { path: '/runs/new' }, params: {} })
    expect(find(routes, '/runs/01a')?.params).toEqual({ run: '01a' })
  })

  it('finds nothing for an address that no page has', () => {
    expect(find(routes, '/elsewhere')).toBeNull()
  })
})

describe('changed', () => {
  it('sets, keeps and takes away parameters, and leaves the old ones alone', () => {
    const before = new URLSearchParams('stage=2%3Adecode&from=1')
    expect(changed(before, { from: null, last: 60, q: '' }).toString()).toBe('stage=2%3Adecode&last=60')
    expect(before.toString()).toBe('stage=2%3Adecode&from=1')
  })
})
