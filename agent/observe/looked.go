package observe

import (
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Looked says which part of a job's requests was sampled. Sampling takes whole requests: of a
// sampled request, all keys are copied.
type Looked struct {
	Requests uint64 // requests with keys
	Sampled  uint64 // of them, those whose keys were copied
	// Estimated is the sum of the weights of the sampled requests, an unbiased estimate of
	// Requests.
	Estimated uint64
	// Spread is the sum of n(n-1) over the sampled requests, n being their weights. It is the
	// variance of Estimated if each request was chosen independently with probability 1/n.
	Spread   uint64
	KeyBytes uint64 // bytes of key and lens frames that were copied, or reported as runs
	AllBytes uint64 // estimate of KeyBytes had every request been sampled
	// Clocks has the highest timestamp of each customer; each counts its own requests.
	Clocks map[Customer]int32
}

// Customer identifies a counter of request timestamps. A job's workers use the same customers.
type Customer struct{ App, Customer int32 }

// maxCustomers bounds the clocks of a job.
const maxCustomers = 64

// clock is the highest timestamp of a customer, and when it was reached.
type clock struct {
	highest int32 // of all workers
	at      int64 // time of the request that reached it, in nanoseconds since 1970
}

// staleClock is how long, in nanoseconds, a clock must have stood still before a lower
// timestamp means that the customer has started over. Until then it comes from a slower worker.
const staleClock = 10e9

// looked accumulates Looked. It is guarded by the observer's lock.
type looked struct {
	Looked
	clocks map[Customer]clock
}

// view returns a copy that may be used without the lock.
func (l *looked) view() Looked {
	v := l.Looked
	v.Clocks = make(map[Customer]int32, len(l.clocks))
	for c, k := range l.clocks {
		v.Clocks[c] = k.highest
	}
	return v
}

// asked advances the clock of a request's customer. Customers beyond maxCustomers have none.
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

// weighed counts a request with keys, which stands for so many that were seen or passed unseen.
// weight is used only if it was sampled.
func (l *looked) weighed(sampled bool, weight, of uint64) {
	l.Requests += of
	if sampled {
		l.Sampled++
		l.Estimated += weight
		l.Spread += weight * (weight - 1)
	}
}

// copied counts a record of a key frame. A run counts with the bytes that it stands for.
func (l *looked) copied(r *bpf.Record, weight uint64) {
	n := uint64(len(r.Data))
	if r.Kind == bpf.KindKeyRun {
		_, _, keys := r.KeyRun()
		n = 8 * keys
	}
	l.KeyBytes += n
	l.AllBytes += n * max(weight, 1)
}

// SetOneIn sets the sampling rate of one job: one request in oneIn from now on, in place of
// Options.OneIn. The kernel's rate is set separately; this one weighs requests whose records do
// not carry it.
func (o *Observer) SetOneIn(job string, oneIn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.jobs {
		if j.Scheduler.String() == job {
			j.oneIn = oneIn
		}
	}
}

// A Followed is an open stream of a job.
type Followed struct {
	ID bpf.StreamID
	// Data says that it connects a worker and a server, Timing that answers on it are only timed.
	Data, Timing bool
}

// StreamsByJob returns the open streams of each job, by the scheduler's address.
func (o *Observer) StreamsByJob() map[string][]Followed {
	o.mu.Lock()
	defer o.mu.Unlock()
	named := make(map[string][]Followed, len(o.jobs))
	for id, s := range o.streams {
		// Of requests that are received no meta is copied, and by metas streams are placed.
		if s.timing && s.receiver == nil {
			s.receiver = o.nodeAt(s.to)
		}
		if j := s.job(); j != nil && !s.closed {
			from, to := roleOfID(s.identity), roleUnknown
			if s.sender != nil {
				from = s.sender.role
			}
			if s.receiver != nil {
				to = s.receiver.role
			}
			data := from == roleServer && to == roleWorker || from == roleWorker && to == roleServer
			name := j.Scheduler.String()
			named[name] = append(named[name], Followed{id, data, s.timing})
		}
	}
	return named
}
