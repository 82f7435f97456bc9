package counts

import "github.com/psidecar/psidecar/internal/page/history"

// Counted returns the job's running totals for the history of curves, which takes differences.
// Bytes by server are those of both directions.
func (j *Locality) Counted() history.Counted {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := history.Counted{Bytes: j.totals.Bytes, LeftHost: j.totals.LeftHost, Steps: append([]uint64(nil), j.all.Steps...)}
	for _, row := range j.all.Pairs {
		for s, p := range row {
			c.ByServer = grown(c.ByServer, s)
			c.ByServer[s] += p.ToServer + p.ToWorker
		}
	}
	c.Micros, c.Counts = j.all.Latency.Bars()
	return c
}
