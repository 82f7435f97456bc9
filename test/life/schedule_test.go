package life

import (
	"fmt"
	"testing"
	"time"
)

// listed returns what happens, and when, as texts.
func listed(all []lane) (list []string) {
	for _, l := range all {
		for _, e := range l.events {
			list = append(list, fmt.Sprint(l.name, e.at, e.event))
		}
	}
	return list
}

// TestSeedRepeats: what happens follows from the seed alone, and a longer life begins like a
// shorter one.
func TestSeedRepeats(t *testing.T) {
	a, b := lanes(7, 10*time.Minute, false), lanes(7, 10*time.Minute, false)
	if got, want := fmt.Sprint(listed(a)), fmt.Sprint(listed(b)); got != want {
		t.Errorf("two lives with one seed: %s and %s", got, want)
	}
	if fmt.Sprint(listed(a)) == fmt.Sprint(listed(lanes(8, 10*time.Minute, false))) {
		t.Error("two seeds give the same life")
	}
	short := lanes(7, 2*time.Minute, false)
	for i, l := range short {
		if len(l.events) == 0 {
			t.Fatalf("nothing happens in lane %s", l.name)
		}
		for n, e := range l.events {
			if got, want := fmt.Sprint(e), fmt.Sprint(a[i].events[n]); got != want {
				t.Errorf("lane %s, event %d: %s in a short life, %s in a long one", l.name, n, got, want)
			}
		}
	}
	for slot := range slots {
		for n := range 50 {
			if got, want := fmt.Sprint(drawJob(7, slot, n)), fmt.Sprint(drawJob(7, slot, n)); got != want {
				t.Errorf("job %d of slot %d is %s and %s", n, slot, got, want)
			}
		}
	}
}

// TestTheUsualLife: in the life of continuous integration whatever can break a connection
// happens, and what loses where keys are; jobs of most models come, with PS_RESEND and without.
func TestTheUsualLife(t *testing.T) {
	kinds := map[string]int{}
	for _, l := range lanes(usualSeed, usualLife, false) {
		for _, e := range l.events {
			kinds[e.kind()]++
		}
	}
	for _, want := range []string{"kill agent", "kill proxy", "kill planner", "kill several", "stop proxy", "stop planner", "replace agent", "replace proxy",
		"replace planner", "replace both", "replace proxy, then agent", "damage a state file", "lose the planner's store", "cut a link", "fill a disk", "set a clock", "load"} {
		if kinds[want] == 0 {
			t.Errorf("there is no event %q: %v", want, kinds)
		}
	}
	models, resend := map[string]int{}, map[bool]int{}
	for slot := range slots {
		for n := range 4 {
			s := drawJob(usualSeed, slot, n+1)
			models[s.model]++
			resend[s.resend]++
		}
	}
	if models["count"] == 0 || models["peer"] == 0 || len(models) < 5 || len(resend) < 2 {
		t.Errorf("jobs are %v, with PS_RESEND %v", models, resend)
	}
}

// TestEverythingIsDrawn: in an hour everything happens, nothing before its season, and all
// kinds of jobs come; those of the lossy slot are never ones that count.
func TestEverythingIsDrawn(t *testing.T) {
	kinds := map[string]int{}
	for _, l := range lanes(1, time.Hour, false) {
		last := time.Duration(0)
		for _, e := range l.events {
			kinds[e.kind()]++
			if e.at < last || e.at > time.Hour-quiet {
				t.Errorf("%v is to happen at %v, after what happens at %v", e.event, e.at, last)
			}
			last = e.at
			if k, ok := e.event.(kill); ok && k.of == proxy && gentle(e.at) {
				t.Errorf("%v at %v, when services only end in order", e.event, e.at)
			}
			if o, ok := e.event.(order); ok && o.lossy > 0 && o.slot != lossySlot {
				t.Errorf("%v may make sums wrong", e.event)
			}
		}
	}
	for _, want := range []string{"kill agent", "kill proxy", "kill planner", "kill several", "stop agent", "stop proxy", "stop planner", "replace agent", "replace proxy",
		"replace planner", "replace both", "replace proxy, then agent", "damage a state file", "lose the planner's store", "cut a link", "fill a disk", "set a clock", "load"} {
		if kinds[want] == 0 {
			t.Errorf("in an hour there is no event %q: %v", want, kinds)
		}
	}
	models := map[string]int{}
	for slot := range slots {
		for n := range 100 {
			s := drawJob(1, slot, n)
			models[s.model]++
			if slot == lossySlot && s.exact() {
				t.Errorf("%s where rules leave values out", s.name)
			}
		}
	}
	for _, want := range []string{"count", "mix", "peer", "pattern", "lr", "fm", "dlrm", "mlp"} {
		if models[want] == 0 {
			t.Errorf("of 300 jobs none is a %s: %v", want, models)
		}
	}
}
