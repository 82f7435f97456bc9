package codecs

import (
	"slices"
	"testing"

	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/test/hoststest"
)

// Where keys are placed elsewhere, servers end with the sums of what they own,
// though most of each push waits until the job's end: with all keys of two
// servers swapped, each has the sums that the other has without a sidecar.
func TestNothingIsLostOfPlacedKeys(t *testing.T) {
	count := []string{"--model", "count", "--count-late", "--async", "--steps", "60", "--count-keys", "2000", "--count-batch", "200"}
	want := Run{Hosts: 2, Direct: true, Job: count}.Do(t).digests()
	slices.Reverse(want)
	flags := []string{"--placement", swap(t, 2000), "--handler", "add", "--threshold", "0.95"}
	for name, env := range map[string][]string{"plain": nil, "resend and loss": {"PS_RESEND=1", "PS_RESEND_TIMEOUT=200", "PS_DROP_MSG=2"}} {
		t.Run(name, func(t *testing.T) {
			o := Run{Hosts: 2, Sidecar: flags, Job: count, Env: env}.Do(t)
			if got := o.digests(); !slices.Equal(got, want) {
				t.Errorf("the servers' digests are %v, want %v", got, want)
			}
			if f := o.Forms["threshold"]; f.Layers == 0 || f.Sent > f.Values*3/4 {
				t.Errorf("%+v", f)
			}
			if o.Reasons["flushed"] == 0 || o.Reasons["flush-failed"] > 0 {
				t.Errorf("%v", o.Reasons)
			}
		})
	}
}

// Placement asks nothing of what servers do with a push: one that keeps the last,
// or scales gradients by those before, has the same as where its keys are at home, to the
// last bit; messages are encoded, and of answers only what has changed goes.
func TestPlacedWithAnyRule(t *testing.T) {
	flags := []string{"--placement", swap(t, 2000), "--codec", "compact", "--unchanged"}
	for _, rule := range []string{"assign", "ftrl", "adagrad"} {
		t.Run(rule, func(t *testing.T) {
			count := []string{"--model", "count", "--rule", rule, "--count-late", "--steps", "40", "--count-keys", "2000", "--count-batch", "200"}
			want := Run{Hosts: 2, Workers: 1, Direct: true, Job: count}.Do(t).digests()
			slices.Reverse(want)
			if got := (Run{Hosts: 2, Workers: 1, Sidecar: flags, Job: count}).Do(t).digests(); !slices.Equal(got, want) {
				t.Errorf("the servers' digests are %v, want %v", got, want)
			}
		})
	}
}

// swap writes a placement that puts psjob's keys of so many ids on the one of two
// servers that is not their home.
func swap(t *testing.T, ids int) (file string) {
	t.Helper()
	keys := hoststest.JobKeys(t, ids)
	var owners []int32
	for _, key := range keys {
		home, ok := pslite.Owner(key, 2)
		if !ok {
			t.Fatalf("key %d has no home", key)
		}
		owners = append(owners, int32(1-home))
	}
	return hoststest.WritePlacement(t, t.TempDir(), []int{0, 1}, keys, owners)
}
