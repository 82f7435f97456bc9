package page

import (
	"net/http"
	"time"

	"github.com/psidecar/psidecar/page/history"
)

// History answers /api/v1/history: how a job went over the last hour, in
// stretches of time that follow one another, older ones coarser. Without a job
// there is what concerns the host alone.
type History struct {
	Job     string         `json:"job"`
	Range                  // what was asked for; absent: the last hour
	Workers []string       `json:"workers,omitempty"` // whose figures these are; absent: all
	Servers []string       `json:"servers,omitempty"` // likewise
	Points  []HistoryPoint `json:"points"`
}

// HistoryQuery is what /api/v1/history takes, beside job: from and to (as of the
// heatmap), and workers and servers (names, separated by commas), of which alone
// the figures are then; what psidecar cost and saved is always that of all. Of some
// workers with some servers it is not known how long requests took.
type HistoryQuery struct {
	Range
	history.Selection
}

// A HistoryPoint is one stretch of time.
type HistoryPoint struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`

	StepsPerSecond float64 `json:"steps_per_second"` // of the median worker
	BytesPerSecond float64 `json:"bytes_per_second"` // of all messages
	// LeftHostPerSecond is absent where figures of some nodes are asked for, of which
	// it is not known.
	LeftHostPerSecond *float64 `json:"left_host_bytes_per_second,omitempty"`
	Requests          uint64   `json:"requests"` // that were answered
	P50               float64  `json:"p50"`      // seconds; 0 where none was answered
	P99               float64  `json:"p99"`
	Skew              float64  `json:"skew"` // bytes of the busiest server, of the mean server's; 0 where none moved any

	// SavedPerSecond is by how many bytes what this host's proxies sent was less
	// than what the jobs gave them; absent where the agent knows of no proxy.
	SavedPerSecond *float64 `json:"saved_bytes_per_second,omitempty"`
	CPUPercent     float64  `json:"cpu_percent"`    // of one core, of psidecar
	KernelPercent  float64  `json:"kernel_percent"` // of one core, of its programs in the kernel
}

// NewHistory returns the points of a job, or of some of its nodes, as they are
// answered. Points of a host, which are there without a job too, are those of the
// empty name.
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

// historyOf answers with a job's history: where none is named, that of the job of
// interest, or, without jobs, the host's own.
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
		if jobs := s.state.Jobs(); job == "" && len(jobs) > 0 {
			if job, err = s.job(v); err != nil {
				return History{}, err
			}
		}
		return of(job, q)
	})
}
