package policy

import (
	"fmt"
	"testing"
)

func TestTable(t *testing.T) {
	var table Titles
	mine := JobTitle{Name: "ns/train", Wishes: Policy{Threshold: "0.9"}}
	table.Set("a", "10.0.0.1:1", mine)
	first := table.Version()
	table.Set("a", "10.0.0.1:1", mine)
	if table.Version() != first {
		t.Error("what is said again is a change")
	}
	// What another tenant's processes say of the same address is theirs alone.
	table.Set("b", "10.0.0.1:1", JobTitle{Name: "evil/x"})
	for _, c := range []struct {
		origin, job string
		want        JobTitle
	}{
		{"a", "10.0.0.1:1", mine}, {"a", "", mine}, {"b", "10.0.0.1:1", JobTitle{Name: "evil/x"}}, {"c", "10.0.0.1:1", JobTitle{}}, {"c", "", JobTitle{}},
	} {
		if got := table.Of(c.origin, c.job); got != c.want {
			t.Errorf("%s, %q: %+v, want %+v", c.origin, c.job, got, c.want)
		}
	}
	if got := table.Name("10.0.0.1:1"); got != "10.0.0.1:1" {
		t.Errorf("a job of two names is %s", got)
	}
	table.Set("b", "10.0.0.1:1", JobTitle{})
	if got := table.Name("10.0.0.1:1"); got != "ns/train" || table.Version() == first {
		t.Errorf("once nothing is said there: %s", got)
	}
	// Of two jobs at a time nobody can say which a connection is of.
	table.Set("a", "10.0.0.2:1", JobTitle{Name: "ns/other"})
	if got := table.Of("a", ""); got != (JobTitle{}) {
		t.Errorf("of two jobs: %+v", got)
	}
	for i := range most + 10 {
		table.Set(fmt.Sprint(i), "x:1", mine)
	}
	if len(table.titles) != most {
		t.Errorf("%d titles are kept, want %d", len(table.titles), most)
	}
	var none *Titles
	if none.Of("a", "") != (JobTitle{}) || none.Version() != 0 || none.Name("x") != "x" {
		t.Error("no table knows something")
	}
}
