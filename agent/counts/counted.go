package counts

import "github.com/psidecar/psidecar/page/history"

// Counted returns the sums of now.
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
