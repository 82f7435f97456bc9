package observe

import (
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// Looked says how much of a job's keys was looked at.
type Looked struct {
	Requests uint64 // with keys
	Sampled  uint64 // of them, those whose keys were copied
	// Estimated is how many those that were sampled stand for: about Requests.
	Estimated uint64
	// Spread is the sum, over those that were sampled, of n (n - 1), where n is how
	// many each stands for: the variance of Estimated, were each chosen by chance.
	Spread   uint64
	KeyBytes uint64 // of key and lens frames that were copied, or reported as runs
	AllBytes uint64 // what they would have been had all been sampled, by estimate
	// Clocks are the highest timestamps of the job's customers: each counts its
	// own requests.
	Clocks map[Customer]int32
}

// Customer is one of the counters of timestamps that a job's workers have alike.
type Customer struct{ App, Customer int32 }

// maxCustomers bounds the clocks of a job.
const maxCustomers = 64

// clock is the highest timestamp of a customer, and when it was reached.
type clock struct {
	highest int32
	at      int64
}

// staleClock is after how long without a higher timestamp a lower one is taken
// for that of a customer that has started over.
const staleClock = 10e9

// looked is Looked as it is gathered; guarded by the observer's mutex.
type looked struct {
	Looked
	clocks map[Customer]clock
}

func (l *looked) view() Looked {
	v := l.Looked
	v.Clocks = make(map[Customer]int32, len(l.clocks))
	for c, k := range l.clocks {
		v.Clocks[c] = k.highest
	}
	return v
}

// asked notes a request of a worker.
func (l *looked) asked(m *pslite.Meta, at int64) {
	if l.clocks == nil {
		l.clocks = map[Customer]clock{}
	}
	c := Customer{m.AppID, m.CustomerID}
	k, known := l.clocks[c]
	if !known && len(l.clocks) >= maxCustomers {
		return
	}
	if !known || m.Timestamp > k.highest || at-k.at > staleClock {
		l.clocks[c] = clock{m.Timestamp, at}
	}
}

// weighed notes that a request with keys was looked at, and for how many it
// stands, or that it was not.
func (l *looked) weighed(sampled bool, weight uint64) {
	l.Requests++
	if sampled {
		l.Sampled++
		l.Estimated += weight
		l.Spread += weight * (weight - 1)
	}
}

// copied notes a piece of a key or lens frame.
func (l *looked) copied(r *bpf.Record, weight uint64) {
	n := uint64(len(r.Data))
	if r.Kind == bpf.KindKeyRun {
		_, _, keys := r.KeyRun()
		n = 8 * keys
	}
	l.KeyBytes += n
	l.AllBytes += n * max(weight, 1)
}

// SetOneIn tells the observer how the job's requests are sampled from now on,
// where that differs from what Options.OneIn says.
func (o *Observer) SetOneIn(job string, oneIn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.jobs {
		if j.Scheduler.String() == job {
			j.oneIn = oneIn
		}
	}
}

// StreamsByJob returns the streams of each job that are open, by the job's
// scheduler.
func (o *Observer) StreamsByJob() map[string][]bpf.StreamID {
	o.mu.Lock()
	defer o.mu.Unlock()
	byJob := map[*Job][]bpf.StreamID{}
	for id, s := range o.streams {
		if j := s.job(); j != nil && !s.closed && !s.timing {
			byJob[j] = append(byJob[j], id)
		}
	}
	named := make(map[string][]bpf.StreamID, len(byJob))
	for j, ids := range byJob {
		named[j.Scheduler.String()] = ids
	}
	return named
}
