package page

import (
	"net/http"
	"time"

	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/planner/api/measure"
)

// History is the answer of /api/v1/history: a job over the last hour, in consecutive stretches
// of time, the older ones coarser. Without a job it has what concerns the host alone.
type History struct {
	Job     string         `json:"job"`
	Range                  // what was asked for; absent: the last hour
	Workers []string       `json:"workers,omitempty"` // the workers whose figures these are; absent: all
	Servers []string       `json:"servers,omitempty"` // likewise
	Points  []HistoryPoint `json:"points"`
	// Events are what changed meanwhile: measures that came to hold or no longer do, stalls.
	Events []history.Event `json:"events,omitempty"`
}

// SeenOf returns what of a job events are made of.
func SeenOf(state string, lines []measure.Line) history.Seen {
	s := history.Seen{Stalled: state == Stalled}
	for _, l := range lines {
		if l.Measure == measure.Observe {
			continue
		}
		if s.On == nil {
			s.On = map[string]string{}
		}
		if l.State != measure.Off && l.On > 0 {
			s.On[l.Measure] = l.Setting
		}
	}
	return s
}

// HistoryQuery are the parameters of /api/v1/history besides job: from and to, as for the
// heatmap, and workers and servers (names, separated by commas), to which the figures are then
// limited; psidecar's cost and savings always cover everything. For some workers together with
// some servers, latencies are unknown.
type HistoryQuery struct {
	Range
	history.Selection
}

// A HistoryPoint is a stretch of time.
type HistoryPoint struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`

	StepsPerSecond float64 `json:"steps_per_second"` // of the median worker
	BytesPerSecond float64 `json:"bytes_per_second"` // of all messages
	// LeftHostPerSecond is absent for a selection of nodes, for which it is unknown.
	LeftHostPerSecond *float64 `json:"left_host_bytes_per_second,omitempty"`
	Requests          uint64   `json:"requests"` // number of answered requests
	P50               float64  `json:"p50"`      // latency in seconds; 0 without answers
	P99               float64  `json:"p99"`
	Skew              float64  `json:"skew"` // bytes of the busiest server relative to the mean; 0 without traffic

	// SavedPerSecond is how many bytes less this host's proxies sent than the jobs gave them;
	// absent if the agent knows of no proxy.
	SavedPerSecond *float64 `json:"saved_bytes_per_second,omitempty"`
	CPUPercent     float64  `json:"cpu_percent"`    // of one core, of psidecar's process
	KernelPercent  float64  `json:"kernel_percent"` // of one core, of its BPF programs
}

// NewHistory converts points, totals of stretches of time, to rates. The points of the host are
// those of the empty name.
func NewHistory(job string, q HistoryQuery, points []history.Point) History {
	h := History{Job: job, Range: q.Range, Workers: q.Workers, Servers: q.Servers, Points: []HistoryPoint{}}
	for _, p := range points {
		seconds := p.To.Sub(p.From).Seconds()
		if seconds <= 0 {
			continue
		}
		point := HistoryPoint{
			From: p.From, To: p.To, StepsPerSecond: p.Steps / seconds, BytesPerSecond: p.Bytes / seconds,
			Requests: p.Requests(), P50: p.Quantile(0.5), P99: p.Quantile(0.99),
			CPUPercent: 100 * p.Host.CPU / seconds, KernelPercent: 100 * p.Host.Kernel / seconds,
		}
		if !q.Some() {
			left := p.LeftHost / seconds
			point.LeftHostPerSecond = &left
		}
		if p.Mean > 0 {
			point.Skew = p.Busiest / p.Mean
		}
		if p.Host.Carries {
			saved := (p.Host.JobBytes - p.Host.FarBytes) / seconds
			point.SavedPerSecond = &saved
		}
		h.Points = append(h.Points, point)
	}
	return h
}

// historyOf answers /api/v1/history. Without a job parameter it takes the job of interest, or
// the host if there are no jobs.
func (s server) historyOf(of func(job string, q HistoryQuery) (History, error)) http.HandlerFunc {
	return answer(func(r *http.Request) (History, error) {
		v := r.URL.Query()
		q := HistoryQuery{Selection: history.Selection{Workers: listed(v, "workers"), Servers: listed(v, "servers")}}
		var err error
		q.Range, err = timeRange(v, time.Now())
		if err != nil {
			return History{}, err
		}
		job := v.Get("job")
		// Without any job the curves of the host are shown, so that the page has something from
		// the start.
		if jobs := s.state.Jobs(); job == "" && len(jobs) > 0 {
			if job, err = s.job(v); err != nil {
				return History{}, err
			}
		}
		return of(job, q)
	})
}
