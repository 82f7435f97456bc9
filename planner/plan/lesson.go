package plan

import (
	"maps"
	"slices"
	"strings"
)

// A Lesson is what one host of a run knows of where keys are. Its owners are right
// for all keys but those that it holds: a key moves only while every host holds it,
// and its new owner is recorded before the first host releases it.
type Lesson struct {
	Owners   Owners
	Held     Owners   // the keys that are held, whatever owner is given
	Sites    []string // the host's names
	AllSites []string // those of all hosts of the run
}

// Merge returns the owners of a run's keys by the lessons of its hosts and, where
// those do not suffice yet, the hosts that must teach first.
//
// For a key that some host does not hold, that host's owner is right. One that all
// hosts hold was let go by none: whether it was recorded or not, both servers have
// its value, and it counts as where it was before.
func Merge(lessons []Lesson, servers int) (owners Owners, waits []string) {
	if len(lessons) == 0 {
		return owners, nil
	}
	for r := range lessons[0].Owners.All() {
		owners.Set(r)
	}
	var unsure []Keys
	for r := range lessons[0].Held.All() {
		unsure = append(unsure, r.Keys)
	}
	for i := range lessons[1:] {
		x := &lessons[i+1]
		var still []Keys
		for _, k := range unsure {
			for part := range x.Held.Within(k) {
				if part.Owner != Home {
					still = append(still, part.Keys)
					continue
				}
				for r := range x.Owners.Resolved(part.Keys, servers) {
					owners.Assign(r.Keys, r.Owner, servers)
				}
			}
		}
		unsure = still
	}
	if len(unsure) == 0 {
		return owners, nil
	}
	missing := map[string]bool{}
	for _, x := range lessons {
		for _, site := range x.AllSites {
			missing[site] = true
		}
	}
	for _, x := range lessons {
		for _, site := range x.Sites {
			delete(missing, site)
		}
	}
	return owners, slices.SortedFunc(maps.Keys(missing), strings.Compare)
}
