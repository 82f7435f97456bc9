package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var background = context.Background()

func entry(name, value string) Entry { return Entry{Name: name, Value: []byte(value)} }

// After any sequence of writes, of which some fail before, while or after they
// are done, and of planners that take over, the store has what a map has, with
// some part from the beginning of each write that failed.
func TestAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster()
		p := c.elect()
		s, err := OpenKube(background, p, "plans", p.holds)
		if err != nil {
			t.Fatal(err)
		}
		states := []map[string]string{{}} // what may be there
		var late []func()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "takeover") == 0 {
				p = c.elect()
				if s, err = OpenKube(background, p, "plans", p.holds); err != nil {
					t.Fatal(err)
				}
				states = settle(t, s, states)
			}
			entries := rapid.SliceOfN(rapid.Custom(drawEntry), 0, 8).Draw(t, "entries")
			p.after = rapid.IntRange(-1, 10).Draw(t, "after")
			p.applied = rapid.Bool().Draw(t, "applied")
			p.late = nil
			err := s.Write(background, entries)
			if p.late != nil {
				late = append(late, p.late)
			}
			after := []map[string]string{}
			for _, before := range states {
				after = append(after, prefixes(before, entries)...)
			}
			if err == nil { // all of it; and what was unsure before is known
				all := kubeContents(t, s)
				if !among(all, afterAll(states, entries)) {
					t.Fatalf("after %q on one of %q it has %q", entries, states, all)
				}
				states = []map[string]string{all}
			} else if states = after; !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			p.after = -1
			if len(late) > 0 && rapid.Bool().Draw(t, "arrives") && err == nil {
				late[0]() // too late: who wrote since has made it invalid
				late = late[1:]
			}
		}
		p = c.elect()
		if s, err = OpenKube(background, p, "plans", p.holds); err != nil {
			t.Fatal(err)
		}
		settle(t, s, states)
	})
}

func drawEntry(t *rapid.T) Entry {
	e := Entry{Name: fmt.Sprintf("job/%d", rapid.IntRange(0, 9).Draw(t, "name"))}
	if rapid.IntRange(0, 3).Draw(t, "removed") > 0 {
		size := rapid.SampledFrom([]int{0, 10, 9000, 20000, 40000, MaxValue - 16}).Draw(t, "size")
		e.Value = fmt.Appendf(bytes.Repeat([]byte{'v'}, size), "%d", rapid.IntRange(0, 1e6).Draw(t, "value"))
	}
	return e
}

// settle checks that the store has one of states, which it then is.
func settle(t *rapid.T, s *KubeStore, states []map[string]string) []map[string]string {
	all := map[string]string{}
	if err := s.Each(background, func(name string, value []byte) error { all[name] = string(value); return nil }); err != nil {
		t.Fatal(err)
	}
	if !among(all, states) {
		t.Fatalf("it has %.200q, want one of %d states", all, len(states))
	}
	return []map[string]string{all}
}

func among(all map[string]string, states []map[string]string) bool {
	for _, s := range states {
		if maps.Equal(all, s) {
			return true
		}
	}
	return false
}

// prefixes returns what may be there after a write of entries that failed.
func prefixes(before map[string]string, entries []Entry) []map[string]string {
	all := []map[string]string{before}
	for _, e := range entries {
		before = maps.Clone(before)
		if delete(before, e.Name); e.Value != nil {
			before[e.Name] = string(e.Value)
		}
		all = append(all, before)
	}
	return all
}

func afterAll(states []map[string]string, entries []Entry) (after []map[string]string) {
	for _, s := range states {
		all := prefixes(s, entries)
		after = append(after, all[len(all)-1])
	}
	return after
}

// Who was replaced and does not know it changes nothing, whatever it was about
// to do: change a page, add one, delete rubbish.
func TestReplacedPlanner(t *testing.T) {
	c := newCluster()
	first := c.elect()
	old := open(t, first)
	if err := old.Write(background, []Entry{entry("a", "1"), entry("b", strings.Repeat("b", pageBytes))}); err != nil {
		t.Fatal(err)
	}
	second := c.elect()
	now := open(t, second)
	if got := kubeContents(t, now); got["a"] != "1" || len(got) != 2 {
		t.Errorf("the second planner finds %.50q", got)
	}
	if got := c.objects["plans"].Annotations[TermAnnotation]; got != "2" {
		t.Errorf("the root has transitions %q", got)
	}
	for _, e := range []Entry{entry("a", "2"), entry("new", strings.Repeat("n", pageBytes)), {Name: "b"}} {
		if err := old.Write(background, []Entry{e}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("the first planner writes %s: %v", e.Name, err)
		}
	}
	if err := now.Write(background, []Entry{entry("c", "3")}); err != nil {
		t.Fatal(err)
	}
	if got := kubeContents(t, open(t, c.elect())); len(got) != 3 || got["a"] != "1" || got["c"] != "3" {
		t.Errorf("it has %.50q", got)
	}
	if first.holder == first {
		t.Error("the first planner has the Lease still")
	}
}

// A Lease that was deleted counts from 0 again.
func TestLeaseMadeAgain(t *testing.T) {
	c := newCluster()
	open(t, c.elect())
	c.term = 7
	open(t, c.elect())
	c.term = -1
	s := open(t, c.elect())
	if err := s.Write(background, []Entry{entry("a", "1")}); err != nil {
		t.Fatal(err)
	}
}

func TestDamage(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		harm       func(c *cluster)
	}{
		{"no root", "restore it", func(c *cluster) { delete(c.objects, "plans") }},
		{"no page", "not found", func(c *cluster) { delete(c.objects, "plans-000000") }},
		{"a broken page", "damaged", func(c *cluster) { c.objects["plans-000000"].BinaryData[pageKey][1] = 200 }},
		{"a later format", "format 2", func(c *cluster) { c.objects["plans"].Data[rootKey] = `{"format":2}` }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster()
			if err := open(t, c.elect()).Write(background, []Entry{entry("a", "1")}); err != nil {
				t.Fatal(err)
			}
			tc.harm(c)
			p := c.elect()
			if _, err := OpenKube(background, p, "plans", p.holds); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("opening gives %v", err)
			}
		})
	}
}

// Pages that an interrupted write left are gone after the next one has opened
// the store, and those of other stores are not touched.
func TestRubbishOfAnInterruptedWriteIsRemoved(t *testing.T) {
	c := newCluster()
	p := c.elect()
	s := open(t, p)
	other, err := OpenKube(background, p, "others", p.holds)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Write(background, []Entry{entry("a", "1")}); err != nil {
		t.Fatal(err)
	}
	p.after = 1 // the page, but not the root
	if err := s.Write(background, []Entry{entry("a", "1")}); err == nil {
		t.Fatal("the write should have failed")
	}
	if c.objects["plans-000000"] == nil {
		t.Fatal("the write should have left a page")
	}
	open(t, c.elect())
	list, err := p.List(background, metav1.ListOptions{LabelSelector: StoreLabel + "=plans"})
	if err != nil || len(list.Items) != 1 || c.objects["others-000000"] == nil {
		t.Errorf("%d objects are left, %v", len(list.Items), err)
	}
}

// Many entries spread over objects, of which none is large.
func TestSpreadOverObjectsOfBoundedSize(t *testing.T) {
	c := newCluster()
	s := open(t, c.elect())
	var entries []Entry
	for i := range 3000 {
		entries = append(entries, entry(fmt.Sprintf("job/x/log/%016x", i), strings.Repeat("r", 100)))
	}
	if err := s.Write(background, entries); err != nil {
		t.Fatal(err)
	}
	if n := len(c.objects); n < 10 || n > 20 || c.writes > 2*n+2 {
		t.Errorf("%d objects by %d writes", n, c.writes)
	}
	for i := range entries {
		entries[i].Value = nil
	}
	pages := len(c.objects)
	if err := s.Write(background, entries); err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		entries[i].Value = make([]byte, 100)
	}
	if err := s.Write(background, entries); err != nil {
		t.Fatal(err)
	}
	if len(c.objects) > pages || len(kubeContents(t, s)) != 3000 {
		t.Errorf("%d objects where %d were enough before", len(c.objects), pages)
	}
}

func FuzzParseEntries(f *testing.F) {
	f.Add(appendEntries(nil, map[string]record{"a": {1, []byte("x")}, "b": {300, nil}}))
	f.Add([]byte{1, 1, 'a', 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseEntries(b)
		if err != nil {
			return
		}
		again, err := parseEntries(appendEntries(nil, entries))
		if err != nil || len(again) != len(entries) {
			t.Errorf("%x: %d entries, then %d, %v", b, len(entries), len(again), err)
		}
	})
}
