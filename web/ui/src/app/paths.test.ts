import { describe, expect, it } from 'vitest'

import { changed, find, match } from './paths'

describe('match', () => {
  it('returns the decoded values of parameters', () => {
    expect(match('/runs/{run}/stages/{stage}', '/runs/01a/stages/2%3Adecode')).toEqual({ run: '01a', stage: '2:decode' })
  })

  it('requires as many segments as the pattern has', () => {
    expect(match('/runs/{run}', '/runs')).toBeNull()
    expect(match('/runs/{run}', '/runs/a/logs')).toBeNull()
  })

  it('ignores a slash at the end and refuses an empty parameter', () => {
    expect(match('/runs', '/runs/')).toEqual({})
    expect(match('/', '/')).toEqual({})
    expect(match('/runs/{run}/logs', '/runs//logs')).toBeNull()
  })

  it('refuses a segment that cannot be decoded', () => {
    expect(match('/modules/{name}', '/modules/%E0%A4%A')).toBeNull()
  })
})

describe('find', () => {
  const routes = [{ path: '/runs/{run}' }, { path: '/runs/new' }, { path: '/modules/{name}/{version}' }]

  it('prefers a path without parameters, at any position', () => {
    expect(find(routes, '/runs/new')).toEqual({ route: { path: '/runs/new' }, params: {} })
    expect(find(routes, '/runs/01a')?.params).toEqual({ run: '01a' })
  })

  it('finds nothing for an unknown address', () => {
    expect(find(routes, '/elsewhere')).toBeNull()
  })
})

describe('changed', () => {
  it('sets, keeps and removes parameters of a copy', () => {
    const before = new URLSearchParams('stage=2%3Adecode&from=1')
    expect(changed(before, { from: null, last: 60, q: '' }).toString()).toBe('stage=2%3Adecode&last=60')
    expect(before.toString()).toBe('stage=2%3Adecode&from=1')
  })
})
