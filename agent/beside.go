package agent

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

// BesideLive shows recordings beside the live jobs of an agent or planner, to which it forwards
// queries about its jobs. It implements page.State. A job counts as recorded unless the last
// list of live jobs had it.
type BesideLive struct {
	*Recorded
	// Ask gets the JSON answer of the agent or planner to a query and decodes it into v.
	Ask func(path string, query url.Values, v any) error

	mu   sync.Mutex      // guards jobs
	jobs map[string]bool // the live jobs, as of the last list
}

// isRecorded reports whether a job is not among the live ones, as of the last list.
func (b *BesideLive) isRecorded(job string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.jobs[job]
}

// Ready implements page.State.
func (b *BesideLive) Ready() error {
	var jobs page.Jobs
	return b.Ask("/api/v1/jobs", nil, &jobs)
}

// Jobs implements page.State: the live jobs first. If the agent or planner does not answer,
// there are none of them; Agent shows the error.
func (b *BesideLive) Jobs() []page.Job {
	var answer page.Jobs
	if err := b.Ask("/api/v1/jobs", nil, &answer); err != nil {
		answer.Jobs = nil // Agent shows the error
	}
	b.mu.Lock()
	b.jobs = map[string]bool{}
	for _, j := range answer.Jobs {
		b.jobs[j.Name] = true
	}
	b.mu.Unlock()
	return append(answer.Jobs, b.Recorded.Jobs()...)
}

// besideAnswer answers from the recordings or, if none has the job, forwards the query. The
// list of live jobs is fetched again before a job is declared unknown.
func besideAnswer[T any](b *BesideLive, job, path string, query url.Values, recorded func() (T, error)) (v T, err error) {
	// Recordings first: they are local, and their names contain a space, which no live job's
	// does.
	if v, err = recorded(); !errors.Is(err, page.ErrNoJob) {
		return v, err
	}
	if b.isRecorded(job) {
		b.Jobs() // it may have begun since
	}
	if b.isRecorded(job) {
		return v, err
	}
	query.Set("job", job)
	err = b.Ask(path, query, &v)
	return v, err
}

// Heatmap implements page.State.
func (b *BesideLive) Heatmap(job string, q page.HeatmapQuery) (page.Heatmap, error) {
	query := spanQuery(q.Range)
	query.Set("blocks", strconv.Itoa(q.Blocks))
	query.Set("first", q.First.Text())
	query.Set("last", q.Last.Text())
	query.Set("measure", string(q.Measure))
	if q.Rows > 0 {
		query.Set("by", "time")
		query.Set("rows", strconv.Itoa(q.Rows))
		query.Set("workers", strings.Join(q.Workers, ","))
	}
	return besideAnswer(b, job, "/api/v1/heatmap", query, func() (page.Heatmap, error) { return b.Recorded.Heatmap(job, q) })
}

// Traffic implements page.State.
func (b *BesideLive) Traffic(job string, r page.Range) (page.Traffic, error) {
	return besideAnswer(b, job, "/api/v1/traffic", spanQuery(r), func() (page.Traffic, error) { return b.Recorded.Traffic(job, r) })
}

// Keys implements page.State.
func (b *BesideLive) Keys(job string, n int) (page.Keys, error) {
	return besideAnswer(b, job, "/api/v1/keys", url.Values{"n": {strconv.Itoa(n)}}, func() (page.Keys, error) { return b.Recorded.Keys(job, n) })
}

// Servers implements page.State.
func (b *BesideLive) Servers(job string, r page.Range) (page.Servers, error) {
	return besideAnswer(b, job, "/api/v1/servers", spanQuery(r), func() (page.Servers, error) { return b.Recorded.Servers(job, r) })
}

// History returns the last hour of a live job or of a recording.
func (b *BesideLive) History(job string, q page.HistoryQuery) (page.History, error) {
	query := spanQuery(q.Range)
	query.Set("workers", strings.Join(q.Workers, ","))
	query.Set("servers", strings.Join(q.Servers, ","))
	return besideAnswer(b, job, "/api/v1/history", query, func() (page.History, error) { return b.Recorded.History(job, q) })
}

// Agent implements page.State. It is the live agent's cost that is shown.
func (b *BesideLive) Agent() page.Agent {
	own := b.Recorded.Agent()
	var live page.Agent
	if err := b.Ask("/api/v1/agent", nil, &live); err != nil {
		own.Host = err.Error() + "; " + own.Host
		return own
	}
	live.Host += ", beside " + own.Host
	live.RecordingBytes = own.RecordingBytes
	return live
}

// spanQuery returns a range of time as query parameters: seconds since 1970, microseconds
// precise.
func spanQuery(r page.Range) url.Values {
	query := url.Values{}
	for name, at := range map[string]time.Time{"from": r.From, "to": r.To} {
		if !at.IsZero() {
			query.Set(name, strconv.FormatFloat(float64(at.UnixNano())/1e9, 'f', 6, 64))
		}
	}
	return query
}
