package page

import (
	"testing"
	"time"
)

// Jobs that are over do not stand in the way of the one that runs.
func TestJobOfInterest(t *testing.T) {
	over := func(name string, at int64) Job { return Job{Name: name, State: Over, LastSeen: time.Unix(at, 0)} }
	for _, tc := range []struct {
		jobs  []Job
		want  string
		among int
	}{
		{[]Job{{Name: "a"}}, "a", 0},
		{[]Job{over("a", 1), {Name: "b", State: Running}}, "b", 0},
		{[]Job{over("a", 1), {Name: "b", State: Stalled}, over("c", 9)}, "b", 0},
		{[]Job{over("a", 5), over("b", 7), over("c", 6)}, "b", 0},
		{[]Job{over("a", 5), {Name: "b", State: Running}, {Name: "c"}}, "", 2},
	} {
		job, among := ofInterest(tc.jobs)
		name := ""
		if job != nil {
			name = job.Name
		}
		if name != tc.want || len(among) != tc.among {
			t.Errorf("of %+v it is %q among %d, want %q among %d", tc.jobs, name, len(among), tc.want, tc.among)
		}
	}
}
