package jobs

import (
	"reflect"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
)

// A host names the part keys that its own servers hold, also those of keys that are home again.
func TestPartKeysOfOwnServers(t *testing.T) {
	x := oneJob(t, Options{})
	if got := x.jobs.PartKeys(); got != nil {
		t.Errorf("part keys of whole values: %v", got)
	}
	x.router.Table().Set([]plan.Range{{Keys: plan.Keys{First: 5, Last: 7}, Owner: plan.Parted(2)}, {Keys: plan.One(9), Owner: plan.Parted(2)}})
	if got := x.jobs.PartKeys(); got != nil {
		t.Errorf("part keys of a host without a server: %v", got)
	}
	x.router.Table().Set([]plan.Range{{Keys: plan.One(8), Owner: plan.Parted(2)}})
	x.local[pslite.ServerID(0)] = true
	at, _ := plan.PartKey(5, 0, 2, x.servers)
	want := []PartKeys{{x.name, []plan.PartRange{{Keys: plan.Keys{First: at, Last: at + 4}, Whole: 5}}}}
	for _, when := range []string{"in parts", "home again"} {
		if got := x.jobs.PartKeys(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		x.router.Table().Set([]plan.Range{{Keys: plan.Keys{First: 5, Last: 9}, Owner: plan.Home}})
	}
}

// Owners that this version does not know reach neither the router nor the site: it would look for the keys
// in the wrong places.
func TestUnknownOwnersAreRefused(t *testing.T) {
	x := oneJob(t, Options{})
	spare := plan.Parted(2) + 1<<5 // as versions with spare servers encode it
	for owner, want := range map[int32]bool{1: true, plan.Parted(2): true, int32(x.servers): false, plan.Parted(3): false, spare: false} {
		for _, kind := range []migrate.Kind{migrate.Hold, migrate.Release} {
			if got := x.ownsIn(&migrate.Message{Kind: kind, Owner: owner}); got != want {
				t.Errorf("a message of kind %d with owner %d is taken: %v, want %v", kind, owner, got, want)
			}
		}
	}
	for owner, want := range map[int32]bool{plan.Parted(2): true, spare: false} {
		table := route.NewTable(x.servers)
		table.Set([]plan.Range{{Keys: plan.One(5), Owner: owner}})
		if err := x.checkOwners(table); (err == nil) != want {
			t.Errorf("a table with owner %d: %v", owner, err)
		}
	}
}
