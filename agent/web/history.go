package web

import (
	"net/http"
	"time"

	"github.com/psidecar/psidecar/agent/history"
)

// History answers /api/v1/history: how a job went over the last hour, in
// stretches of time that follow one another, older ones coarser. Without a job
// there is what concerns the host alone.
type History struct {
	Job    string         `json:"job"`
	Range                 // what was asked for; absent: the last hour
	Points []HistoryPoint `json:"points"`
}

// A HistoryPoint is one stretch of time.
type HistoryPoint struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`

	StepsPerSecond    float64 `json:"steps_per_second"` // of the median worker
	BytesPerSecond    float64 `json:"bytes_per_second"` // of all messages
	LeftHostPerSecond float64 `json:"left_host_bytes_per_second"`
	Requests          uint64  `json:"requests"` // that were answered
	P50               float64 `json:"p50"`      // seconds; 0 where none was answered
	P99               float64 `json:"p99"`
	Skew              float64 `json:"skew"` // bytes of the busiest server, of the mean server's; 0 where none moved any

	// SavedPerSecond is by how many bytes what this host's proxies sent was less
	// than what the jobs gave them; absent where the agent knows of no proxy.
	SavedPerSecond *float64 `json:"saved_bytes_per_second,omitempty"`
	CPUPercent     float64  `json:"cpu_percent"`    // of one core, of psidecar
	KernelPercent  float64  `json:"kernel_percent"` // of one core, of its programs in the kernel
}

// NewHistory returns the points of a log as they are answered. Points of a host,
// which are there without a job too, are those of the empty name.
func NewHistory(log *history.Log, job string, r Range) History {
	h := History{Job: job, Range: r, Points: []HistoryPoint{}}
	for _, p := range log.Of(job, r.From, r.To) {
		seconds := p.To.Sub(p.From).Seconds()
		if seconds <= 0 {
			continue
		}
		point := HistoryPoint{
			From: p.From, To: p.To, StepsPerSecond: p.Steps / seconds, BytesPerSecond: p.Bytes / seconds, LeftHostPerSecond: p.LeftHost / seconds,
			Requests: p.Requests(), P50: p.Quantile(0.5), P99: p.Quantile(0.99),
			CPUPercent: 100 * p.Host.CPU / seconds, KernelPercent: 100 * p.Host.Kernel / seconds,
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
func (s server) historyOf(of func(job string, r Range) (History, error)) http.HandlerFunc {
	return answer(func(r *http.Request) (History, error) {
		v := r.URL.Query()
		span, err := timeRange(v, time.Now())
		if err != nil {
			return History{}, err
		}
		job := v.Get("job")
		if jobs := s.state.Jobs(); job == "" && len(jobs) > 0 {
			if job, err = s.job(v); err != nil {
				return History{}, err
			}
		}
		return of(job, span)
	})
}
