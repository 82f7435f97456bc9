package counts

import (
	"slices"
	"testing"
)

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
