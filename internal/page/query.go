package page

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults and bounds of parameters. The bounds keep an answer, and the time for it, small.
const (
	defaultBlocks = 256
	maxBlocks     = 4096
	defaultRows   = 40
	maxRows       = 120
	defaultHot    = 50
	maxHot        = 10000
)

// jobs answers /api/v1/jobs.
func (s server) jobs(*http.Request) (Jobs, error) {
	return Jobs{Jobs: nonNil(s.state.Jobs())}, nil
}

// heatmap answers /api/v1/heatmap; HeatmapQuery has the parameters.
func (s server) heatmap(r *http.Request) (Heatmap, error) {
	v := r.URL.Query()
	job, err := s.job(v)
	if err != nil {
		return Heatmap{}, err
	}
	// All keys, unless the query says less.
	q := HeatmapQuery{Last: math.MaxUint64, Measure: Accesses}
	if q.Blocks, err = number(v, "blocks", defaultBlocks, maxBlocks); err != nil {
		return Heatmap{}, err
	}
	if q.First, err = key(v, "first", q.First); err != nil {
		return Heatmap{}, err
	}
	if q.Last, err = key(v, "last", q.Last); err != nil {
		return Heatmap{}, err
	}
	if q.Last < q.First {
		return Heatmap{}, bad("last=%d is below first=%d", q.Last, q.First)
	}
	if q.Range, err = timeRange(v, time.Now()); err != nil {
		return Heatmap{}, err
	}
	if m := v.Get("measure"); m != "" {
		q.Measure = Measure(m)
		if !slices.Contains(Measures, q.Measure) {
			return Heatmap{}, bad("measure=%q: use one of %v", m, Measures)
		}
	}
	switch by := v.Get("by"); by {
	case "", "worker":
	case "time":
		// Rows stays 0 without by=time, which is how the state tells the two kinds apart.
		if q.Rows, err = number(v, "rows", defaultRows, maxRows); err != nil {
			return Heatmap{}, err
		}
		q.Workers = listed(v, "workers")
	default:
		return Heatmap{}, bad("by=%q: use worker or time", by)
	}
	h, err := s.state.Heatmap(job, q)
	// Harmless after an error: there are no blocks to name then.
	h.Call(s.called())
	h.Workers, h.Blocks, h.Counts = nonNil(h.Workers), nonNil(h.Blocks), nonNil(h.Counts)
	return h, err
}

// traffic answers /api/v1/traffic.
func (s server) traffic(r *http.Request) (Traffic, error) {
	job, span, err := s.jobAndRange(r)
	if err != nil {
		return Traffic{}, err
	}
	return s.state.Traffic(job, span)
}

// servers answers /api/v1/servers.
func (s server) servers(r *http.Request) (Servers, error) {
	job, span, err := s.jobAndRange(r)
	if err != nil {
		return Servers{}, err
	}
	return s.state.Servers(job, span)
}

// keys answers /api/v1/keys.
func (s server) keys(r *http.Request) (Keys, error) {
	v := r.URL.Query()
	job, err := s.job(v)
	if err != nil {
		return Keys{}, err
	}
	n, err := number(v, "n", defaultHot, maxHot)
	if err != nil {
		return Keys{}, err
	}
	k, err := s.state.Keys(job, n)
	k.call(s.called())
	return k, err
}

// agent answers /api/v1/agent.
func (s server) agent(*http.Request) (Agent, error) { return s.state.Agent(), nil }

// job returns the job of a query. It may be left out if only one job can be meant.
func (s server) job(v url.Values) (string, error) {
	if name := v.Get("job"); name != "" {
		return name, nil
	}
	jobs := s.state.Jobs()
	switch len(jobs) {
	case 0:
		return "", fmt.Errorf("%w: no job has been seen yet", ErrNoJob)
	case 1:
		return jobs[0].Name, nil
	}
	job, among := ofInterest(jobs)
	if job != nil {
		return job.Name, nil
	}
	// The error names the jobs, so that the caller can choose without asking again.
	names := make([]string, len(among))
	for i, j := range among {
		names[i] = j.Name
	}
	return "", bad("there are %d jobs; select one with job=: %s", len(among), strings.Join(names, ", "))
}

// ofInterest returns the job that is meant if a query names none: the only one that is not over
// or, if all are over, the one that was active last. Otherwise it returns nil and the
// candidates. jobs must not be empty.
func ofInterest(jobs []Job) (*Job, []Job) {
	var running []Job
	last := &jobs[0]
	for i := range jobs {
		if jobs[i].State != Over {
			running = append(running, jobs[i])
		}
		if jobs[i].LastSeen.After(last.LastSeen) {
			last = &jobs[i]
		}
	}
	switch len(running) {
	case 0:
		return last, nil
	case 1:
		return &running[0], nil
	}
	return nil, running
}

// jobAndRange returns the parameters that most answers have in common.
func (s server) jobAndRange(r *http.Request) (string, Range, error) {
	v := r.URL.Query()
	job, err := s.job(v)
	if err != nil {
		return "", Range{}, err
	}
	span, err := timeRange(v, time.Now())
	return job, span, err
}

// bad returns an error that becomes status 400.
func bad(format string, args ...any) error {
	return badRequest{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// number returns a parameter from 1 to most, or otherwise if it is missing.
func number(v url.Values, name string, otherwise, most int) (int, error) {
	s := v.Get(name)
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, bad("%s=%q: want a number from 1 to %d", name, s, most)
	}
	return n, nil
}

// key returns a parameter that is a key, or otherwise if it is missing.
func key(v url.Values, name string, otherwise Key) (Key, error) {
	s := v.Get(name)
	if s == "" {
		return otherwise, nil
	}
	k, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, bad("%s=%q: want a key, a number from 0 to 2^64-1", name, s)
	}
	return Key(k), nil
}

// listed returns a parameter's names, which are separated by commas.
func listed(v url.Values, name string) []string {
	if names := v.Get(name); names != "" {
		return strings.Split(names, ",")
	}
	return nil
}

// timeRange returns the range of time of a query. Both ends are relative to the same now.
func timeRange(v url.Values, now time.Time) (r Range, err error) {
	if r.From, err = moment(v, "from", now); err != nil {
		return r, err
	}
	if r.To, err = moment(v, "to", now); err != nil {
		return r, err
	}
	if !r.To.IsZero() && r.To.Before(r.From) {
		return r, bad("to=%s is before from=%s", v.Get("to"), v.Get("from"))
	}
	return r, nil
}

// moment parses a time: seconds since 1970 or, if negative, seconds before now.
func moment(v url.Values, name string, now time.Time) (time.Time, error) {
	s := v.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseFloat(s, 64)
	// The bound keeps years below 10000, as times in JSON need.
	if err != nil || math.IsNaN(seconds) || math.Abs(seconds) > 1e11 {
		return time.Time{}, bad("%s=%q: want seconds since 1970, or negative: seconds before now", name, s)
	}
	if seconds < 0 {
		return now.Add(time.Duration(seconds * float64(time.Second))), nil
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)), nil
}

// nonNil returns an empty list for nil, so that JSON has [] and not null.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
