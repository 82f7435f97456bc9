package history

import (
	"fmt"
	"testing"
	"time"

	"slices"
)

// What differs from what was seen before is an event; what was so from the start is none.
func TestEvents(t *testing.T) {
	var l Log
	start := time.Unix(1000, 0)
	at := start
	see := func(s Seen, want ...string) {
		t.Helper()
		old := len(l.Events("job"))
		l.Add("job", Point{From: at, To: at.Add(Every)})
		at = at.Add(Every)
		l.See("job", at, s)
		var got []string
		for _, e := range l.Events("job")[old:] {
			if !e.At.Equal(at) {
				t.Errorf("%s is said to be at %s, not %s", e.What, e.At, at)
			}
			got = append(got, e.What)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v gives %q, want %q", s, got, want)
		}
	}
	l.See("other", at, Seen{}) // without points
	see(Seen{On: map[string]string{"compact": ""}})
	see(Seen{On: map[string]string{"compact": "", "threshold": "0.99"}}, "threshold 0.99 on")
	see(Seen{Stalled: true}, "stalled") // the proxy is away: nothing is known of measures
	see(Seen{On: map[string]string{"compact": "", "threshold": "0.9"}}, "goes on", "threshold 0.9 on")
	see(Seen{On: map[string]string{}}, "compact off", "threshold off")
	if n := len(l.Events("other")); n > 0 {
		t.Errorf("%d events of a job without points", n)
	}
	for i := range 3 * maxEvents {
		l.See("job", at, Seen{On: map[string]string{"quantize": fmt.Sprint(i)}})
	}
	if n := len(l.Events("job")); n != maxEvents {
		t.Errorf("%d events are kept, want %d", n, maxEvents)
	}
	l.See("job", at.Add(2*Kept), Seen{Stalled: true})
	if got := l.Events("job"); len(got) != 1 {
		t.Errorf("after hours there are %d", len(got))
	}
}
