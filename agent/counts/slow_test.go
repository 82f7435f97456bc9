package counts

import (
	"slices"
	"testing"
	"time"
)

// TestSlowRequestsAreToldOnce: requests whose answers took long enough are told, once, as they were
// described; quick ones, repeats and those that were given up are not.
func TestSlowRequestsAreToldOnce(t *testing.T) {
	opts := DefaultLocalityOptions
	opts.SlowAfter = 100 * time.Millisecond
	var told []Slow
	opts.Slow = func(s Slow) { told = append(told, s) }
	j := NewLocality(opts)
	at := func(ms int64) int64 { return 1_000_000_000_000 + ms*1e6 }
	request := func(timestamp int32, ms int64) Request {
		return Request{Worker: 2, Server: 1, Time: at(ms), Timestamp: timestamp, Push: true, Bytes: 10}
	}

	j.Ask(request(1, 0)) // quick
	j.Answer(request(1, 99))
	j.Ask(request(2, 100)) // as long as it must be
	j.Describe(request(2, 100), 500, 7, false, 0, 0)
	j.Answer(request(2, 200))
	j.Answer(request(2, 400)) // again
	j.Ask(request(3, 300))    // timed where it was received
	j.Timed(request(3, 500))
	j.Timed(request(3, 900))
	j.Answer(request(4, 900)) // never asked

	want := []Slow{
		{Worker: 2, Server: 1, Asked: at(100), Answered: at(200), Push: true, Keys: 7, Bytes: 500},
		{Worker: 2, Server: 1, Asked: at(300), Answered: at(500), Push: true, Bytes: 10},
	}
	if !slices.Equal(told, want) {
		t.Errorf("told are %+v, want %+v", told, want)
	}
}

// TestAnyServerMayAnswer: where requests are rerouted whole, as BytePS's, an answer ends the wait
// of the request to another server; elsewhere it does not, since that one's is still to come.
func TestAnyServerMayAnswer(t *testing.T) {
	for _, any := range []bool{true, false} {
		j := NewLocality(DefaultLocalityOptions)
		j.Ask(Request{Worker: 2, Server: 1, Time: 1e9, Timestamp: 7, Pull: true})
		j.Ask(Request{Worker: 3, Server: 1, Time: 1e9, Timestamp: 7, Pull: true})
		j.Answer(Request{Worker: 2, Server: 0, Time: 2e9, Timestamp: 7, Pull: true, AnyServer: any})
		waits := j.pending.oldest()
		slices.SortFunc(waits, func(a, b Wait) int { return a.Worker - b.Worker })
		if len(waits) == 0 || waits[len(waits)-1].Worker != 3 || (len(waits) == 1) != any {
			t.Errorf("any server may answer: %v; what waits is %+v", any, waits)
		}
	}
}
