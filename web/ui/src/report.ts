// Page with the report of a benchmark, as one file: the page contains the report and sends no requests.

import './app.css'

import { mount } from 'svelte'

import type { BenchReport } from './api/types'
import ReportFile from './bench/ReportFile.svelte'

const written: unknown = JSON.parse(document.getElementById('report')?.textContent ?? 'null')
const report = written !== null && typeof written === 'object' ? (written as BenchReport) : null

mount(ReportFile, { target: document.body, props: { report } })
