package plan

import (
	"maps"
	"slices"
	"strings"
)

// A Lesson is what one host of a run knows of the owners of keys. Its Owners are right for all keys
// except those that it holds. That follows from the protocol of moves: a key moves only while every
// host holds it, and its new owner is recorded before the first host releases it.
type Lesson struct {
	Owners Owners
	// The keys that the host holds, under any owner but Home.
	Held     Owners
	Sites    []string // the host's names
	AllSites []string // those of all hosts of the run
}

// Merge returns the owners of a run's keys by the lessons of its hosts, or, if those do not suffice
// yet, the names of the hosts that must teach first.
//
// If some host does not hold a key, that host's owner is right. If all hosts hold it, none has
// released it: whether or not the move was recorded, both servers still have the value, and it
// counts as being where it was before. But that is known only when all hosts have taught.
func Merge(lessons []Lesson, servers int) (owners Owners, waits []string) {
	if len(lessons) == 0 {
		return owners, nil
	}
	for r := range lessons[0].Owners.All() {
		owners.Set(r)
	}
	// Keys that every lesson so far holds.
	var unsure []Keys
	for r := range lessons[0].Held.All() {
		unsure = append(unsure, r.Keys)
	}
	for i := range lessons[1:] {
		x := &lessons[i+1]
		var still []Keys
		for _, k := range unsure {
			// Split the range by whether this host holds the keys, too.
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
	// Every key was released by some host, or was never held. Other hosts need not teach.
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
