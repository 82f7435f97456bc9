package demo

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// What is said of a phase begins with its number and name, what is said again too.
func TestTellingNamesThePhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		moved := uint64(0)
		l := newTelling(func(text string) { said = append(said, text) }, true, func() (uint64, error) { return moved, nil })
		l.tell("starting a planner")
		l.announcePhase(1, 2, "baseline")
		moved = 1_500_000
		time.Sleep(tellEvery + tellEvery/2)
		l.announcePhase(2, 2, "placement")
		l.tell("partitioning data and keys")
		time.Sleep(tellEvery)
		l.endPhase()
		time.Sleep(2 * tellEvery)
		l.close()
		want := []string{
			"starting a planner", "phase 1 of 2, baseline", "phase 1 of 2, baseline, 2 s, 1.5 MB between the hosts",
			"phase 2 of 2, placement", "phase 2 of 2, placement: partitioning data and keys", "phase 2 of 2, placement: partitioning data and keys, 1 s",
		}
		if !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}
