package counts

import (
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/page/history"
)

// slots is how many seconds are kept one by one.
const slots = 64

// A second is what happened in one second.
type second struct {
	number int64 // seconds since 1970; a slot with another number is out of date
	bytes  uint64
	steps  []uint32 // by worker
	waited []int64  // by worker: nanoseconds of waiting that ended in this second
}

// seconds is a ring of the last seconds, each at its number modulo slots.
type seconds [slots]second

// at returns the slot of a time and resets it if it is of an earlier round. The slices are
// reused. A time that is too old falls into a newer second's slot, which is only a display
// error.
func (s *seconds) at(nanos int64) *second {
	number := nanos / int64(time.Second)
	slot := &s[((number%slots)+slots)%slots]
	if slot.number < number {
		*slot = second{number: number, steps: slot.steps[:0], waited: slot.waited[:0]}
	}
	return slot
}

// grown extends list so that index n is valid.
func grown[T any](list []T, n int) []T {
	for n >= len(list) {
		var zero T
		list = append(list, zero)
	}
	return list
}

// worker is what a worker is doing. Times are in nanoseconds since 1970, 0 for never.
type worker struct {
	asked, answered int64 // of its last request, and of the last answer to it
	stepped         int64 // when its last step began
	stepEvery       int64 // moving average of the time between steps, in nanoseconds
	waits           int   // requests in flight
	waitsSince      int64 // since when there is at least one
	barrier         int64 // since when it waits at a barrier, 0 if it does not
}

// waiting returns since when the worker has been waiting for others, 0 if it is not.
func (w *worker) waiting() int64 {
	switch {
	case w.barrier > 0:
		return w.barrier
	case w.waits > 0:
		return w.waitsSince
	}
	return 0
}

// step records that n steps have passed and another begins, and averages the time that each took
// with weight 1/4.
func (w *worker) step(at int64, n uint64) {
	if took := (at - w.stepped) / int64(n); w.stepped > 0 && took > 0 {
		if w.stepEvery == 0 {
			w.stepEvery = took
		}
		w.stepEvery += (took - w.stepEvery) / 4
	}
	w.stepped = max(w.stepped, at)
}

// worker returns a worker's state. The caller holds j.mu.
func (j *Locality) worker(i int) *worker {
	j.workers = grown(j.workers, i)
	return &j.workers[i]
}

// endWait records that a worker which had waited since the given time continues. The whole wait
// counts in the second in which it ends. It does nothing if the worker still waits for
// something else.
func (j *Locality) endWait(i int, since, at int64) {
	if since > 0 && at > since && j.workers[i].waiting() == 0 {
		s := j.seconds.at(at)
		s.waited = grown(s.waited, i)
		s.waited[i] += at - since
	}
}

// Barrier records that a worker has entered a barrier (waits), or was released from it.
func (j *Locality) Barrier(worker int, at int64, waits bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.worker(worker)
	if waits {
		w.barrier, w.asked = at, max(w.asked, at)
		return
	}
	since := w.barrier
	w.barrier, w.answered = 0, max(w.answered, at)
	j.endWait(worker, since, at)
}

// Lately is what happened in a stretch of time that ends now.
type Lately struct {
	Seconds  float64
	Bytes    uint64
	Steps    []uint64  // by worker
	Waited   []float64 // by worker: fraction of the time spent waiting for others, at most 1
	stepping []bool    // see View
}

// Lately returns what happened in the last whole seconds of a span, at most 62 s. Seconds
// before the job's first message are left out, so that rates of a new job are right.
func (j *Locality) Lately(now int64, span time.Duration) Lately {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The second that is under way would make every rate too low.
	last := now/int64(time.Second) - 1 // the last second that is complete
	first := last - int64(min(span, (slots-2)*time.Second)/time.Second) + 1
	// The job's first second counts in full, even if it began in the middle.
	if j.all.Start > 0 { // a job that has just begun
		first = max(first, min(j.all.Start/int64(time.Second), last))
	}
	l := Lately{Seconds: float64(last - first + 1), Steps: make([]uint64, len(j.progress)), Waited: make([]float64, len(j.workers)), stepping: j.stepping()}
	for number := first; number <= last; number++ {
		s := &j.seconds[number%slots]
		if s.number != number {
			continue
		}
		l.Bytes += s.bytes
		for w, n := range s.steps {
			l.Steps = grown(l.Steps, w)
			l.Steps[w] += uint64(n)
		}
		for w, n := range s.waited {
			l.Waited[w] += float64(n) / 1e9 / l.Seconds
		}
	}
	// Waits that have not ended yet are in no slot.
	end := (last + 1) * int64(time.Second)
	for w := range j.workers {
		if since := j.workers[w].waiting(); since > 0 && since < end {
			l.Waited[w] += float64(end-since) / 1e9 / l.Seconds
		}
		l.Waited[w] = min(l.Waited[w], 1)
	}
	return l
}

// MedianSteps returns the steps of the median worker, the upper one of two.
func (l *Lately) MedianSteps() uint64 { return medianOf(l.Steps, l.stepping) }

// Stragglers returns the workers that lag, as View.Stragglers does.
func (l *Lately) Stragglers() []int { return stragglers(l.Steps, l.stepping) }

// A WorkerNow is what a worker is doing. Times are in nanoseconds since 1970.
type WorkerNow struct {
	Last      int64         // of its last request or answer; 0: never
	Barrier   int64         // since when it waits at a barrier; 0 if it does not
	Waiting   bool          // for an answer, or at a barrier
	StepEvery time.Duration // moving average of the time between steps; 0: unknown
}

// A Wait is a request in flight, the oldest one of its worker and server.
type Wait struct {
	Worker, Server int
	Since          int64
	Requests       int // in flight between the two, including some answered out of turn
	Push, Pull     bool
	Bytes          uint64 // of the request; 0 unknown
	Keyed          bool   // First and Last are known
	First, Last    uint64 // keys
}

// Now returns what each worker is doing, and the oldest request in flight of each pair, longest
// wait first.
func (j *Locality) Now() (workers []WorkerNow, waits []Wait) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.workers {
		w := &j.workers[i]
		workers = append(workers, WorkerNow{
			Last: max(w.asked, w.answered), Barrier: w.barrier, Waiting: w.waiting() > 0, StepEvery: time.Duration(w.stepEvery),
		})
	}
	waits = j.pending.oldest()
	slices.SortFunc(waits, func(a, b Wait) int { return int(max(min(a.Since-b.Since, 1), -1)) })
	return workers, waits
}

// Describe adds the size and, if keyed, the range of keys to a request in flight. They become known at the end of its message, after Ask.
func (j *Locality) Describe(r Request, bytes uint64, keyed bool, first, last uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	x := r.exchange()
	if w, ok := j.pending.at[x]; ok {
		w.bytes = bytes
		if keyed {
			w.keyed, w.first, w.last = true, first, last
		}
		j.pending.at[x] = w
	}
}

// ServerTimes is how long a server takes to answer.
type ServerTimes struct {
	Recent, Before time.Duration // mean latency lately, and over all time; 0: no answers
	Answers        uint64        // lately
}

// ServerTimes returns the latency of each server since a time (nanoseconds since 1970), in
// whole intervals, beside that over all time.
func (j *Locality) ServerTimes(since int64) []ServerTimes {
	j.mu.Lock()
	defer j.mu.Unlock()
	times := make([]ServerTimes, len(j.all.ByServer))
	recent := make([]history.Latency, len(times))
	for i := len(j.ring) - 1; i >= 0 && j.ring[i].End >= since; i-- {
		for server, l := range j.ring[i].ByServer {
			recent[server].Merge(l)
		}
	}
	for i := range times {
		times[i].Recent, times[i].Answers = recent[i].Mean()
		times[i].Before, _ = j.all.ByServer[i].Mean()
	}
	return times
}
