package listeners

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/policy"
)

// Processes of one cgroup speak for their job together, and for no other's.
func TestWishesOfOneCgroupAreForItsJobAlone(t *testing.T) {
	got := wishesOf([]Process{
		{Job: "a:1", Cgroup: "/x", Wishes: policy.Policy{Threshold: "0.9"}},
		{Job: "a:1", Cgroup: "/x", Called: "ctr", Wishes: policy.Policy{Threshold: "0.5", Codec: "none"}},
		{Job: "a:1", Cgroup: "/y", Called: "other"},
		{Job: "b:1", Cgroup: "/x"},
		{Cgroup: "/x", Called: "pending"},
	})
	want := map[group]wishes{
		{"/x", "a:1"}: {"ctr", policy.Policy{Threshold: "0.9", Codec: "none"}},
		{"/y", "a:1"}: {"other", policy.Policy{}},
		{"/x", "b:1"}: {},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(group{}, wishes{})); diff != "" {
		t.Error(diff)
	}
}

// The processes of one cgroup do not use up the titles of all others.
func TestTitlesOfOnePlaceHaveABound(t *testing.T) {
	l := &Listeners{titles: map[titled]handover.Title{}}
	hostile, other := place{1, 7}, place{2, 7}
	for i := range maxTitles {
		l.title(titled{hostile, fmt.Sprint("job", i)}, wishes{name: "x"})
	}
	l.title(titled{other, "job"}, wishes{name: "y"})
	if n := len(l.titles); n != maxTitlesOfPlace+1 || l.titles[titled{other, "job"}].Name != "y" {
		t.Errorf("%d titles are kept, want %d and that of another place", n, maxTitlesOfPlace)
	}
}
