package codecs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// put gives a sidecar's proxy other rules.
func put(ctx context.Context, s *sidecar.Sidecar, rules string) error {
	return s.Order(ctx, http.MethodPut, "/api/v1/codecs", rules)
}

// await waits until one proxy's counts are as wanted.
func await(t *testing.T, what string, ok func(*proxy.ValuesState) bool, of ...*sidecar.Sidecar) {
	t.Helper()
	require.Await(t, what, func() error {
		var all []error
		for _, s := range of {
			state, err := s.Connections(t.Context())
			if err == nil && ok(state.Values) {
				return nil
			}
			all = append(all, fmt.Errorf("%+v, %v", state.Values, err))
		}
		return errors.Join(all...)
	})
}

// A recommender trains across hosts, its pushes by a hundredth: on from the
// start, changed and turned off while it runs. All pushes of the time under the
// threshold take at least 80 times fewer bytes.
func TestThresholdEndToEnd(t *testing.T) {
	data := require.Dataset(t, "criteo-raw-7k.csv.xz")
	var under float64
	o := Run{
		Hosts: 2, Sidecar: []string{"--handler", "add", "--threshold", "0.99"},
		Job: []string{"--model", "dlrm", "--data", data, "--steps", "400", "--batch", "16", "--learning-rate", "0.05"},
		Started: func(sidecars []*sidecar.Sidecar, _ *hosts.Running) {
			for _, s := range sidecars {
				await(t, "a push under the threshold", func(v *proxy.ValuesState) bool {
					for _, f := range v.Forms {
						if f.Form == "threshold" && f.Layers > 200 {
							under = float64(f.Bytes) / float64(f.Encoded)
							return true
						}
					}
					return false
				}, s)
			}
			require.Await(t, "how much of a step is held back", func() error {
				state, err := sidecars[0].Connections(t.Context())
				for _, l := range state.Measures {
					if steps, ok := l.Steps(); ok && steps > 0 && l.HeldValues > 0 {
						return nil
					}
				}
				return cmp.Or(err, fmt.Errorf("%+v", state.Measures))
			})
			for _, change := range []struct {
				rules string
				forms []string // are in use then
			}{{`[{"threshold":0.99,"threshold-auto":true,"quantize":8,"unchanged":true}]`, []string{"unchanged"}}, {`[{"slim":{"alpha":0.3,"epsilon":0.15}}]`, []string{"slim-push", "slim-pull"}}, {`[]`, nil}} {
				for _, s := range sidecars {
					require.NoError(t, put(t.Context(), s, change.rules))
				}
				for _, form := range change.forms { // each on the worker's or the server's host
					await(t, form, func(v *proxy.ValuesState) bool {
						return slices.ContainsFunc(v.Forms, func(f values.FormCount) bool { return f.Form == form && f.Layers > 50 })
					}, sidecars...)
				}
			}
			if err := put(t.Context(), sidecars[0], `[{"threshold":1}]`); err == nil || !strings.Contains(err.Error(), "want a sparsity from 0") {
				t.Errorf("a threshold of 1 was answered with %v", err)
			}
		},
	}.Do(t)
	t.Log(o)
	if under < 80 {
		t.Errorf("under a threshold of 99%% pushes took %.1f times fewer bytes", under)
	}
	if w := o.First(); w.Loss == nil || !(*w.Loss < 0.6) {
		t.Errorf("the job did not learn: %+v", w)
	}
	for form := range map[string]bool{"threshold": true, "slim-push": true, "slim-pull": true, "unchanged": true} {
		if o.Forms[form].Layers == 0 {
			t.Errorf("%s was not in use: %v", form, o.Forms)
		}
	}
	delete(o.Reasons, "flushed")
	delete(o.Reasons, "unpulled") // each worker's first push, and dense keys' first ones
	delete(o.Reasons, "commands") // until psjob's are known as the numbers of steps
	for r, n := range o.Reasons {
		t.Errorf("%s: %d", r, n)
	}
}

// The servers end with the very sums that they have without a sidecar, though
// most of each push waits: it goes out before the workers' last barrier.
// Meanwhile messages are lost and repeated.
func TestNothingIsLost(t *testing.T) {
	count := []string{"--model", "count", "--count-late", "--async", "--steps", "60", "--count-keys", "2000", "--count-batch", "200"}
	for name, c := range map[string]struct {
		threshold string
		more      []string
	}{"scalar": {"0.95", nil}, "lens": {"auto", []string{"--count-lens"}}} {
		t.Run(name, func(t *testing.T) {
			args := append(slices.Clone(count), c.more...)
			want := Run{Hosts: 2, Direct: true, Job: args}.Do(t).digests()
			lossy := Run{Hosts: 2, Sidecar: []string{"--handler", "add", "--threshold", c.threshold}, Job: args, Env: []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200", "PS_DROP_MSG=2"}}
			o := lossy.Do(t)
			t.Log(o)
			if got := o.digests(); !slices.Equal(got, want) {
				t.Errorf("the servers' digests are %v, want %v", got, want)
			}
			if f := o.Forms["threshold"]; f.Layers == 0 || f.Sent > f.Values*3/4 {
				t.Errorf("%+v", f)
			}
			if o.Reasons["flushed"] == 0 || o.Reasons["flush-failed"] > 0 || o.Reasons["repeat"] == 0 {
				t.Errorf("%v", o.Reasons)
			}
		})
	}
}

// So they do where no sidecar runs on the scheduler's host: the workers' last
// barriers go there directly, through their own hosts' proxies.
func TestNothingIsLostWithoutAProxyAtTheScheduler(t *testing.T) {
	count := []string{"--model", "count", "--count-late", "--async", "--steps", "60", "--count-keys", "2000", "--count-batch", "200"}
	want := Run{Hosts: 2, Direct: true, Job: count}.Do(t).digests()
	o := Run{Hosts: 2, Apart: true, Sidecar: []string{"--handler", "add", "--threshold", "0.95"}, Job: count}.Do(t)
	if got := o.digests(); !slices.Equal(got, want) {
		t.Errorf("the servers' digests are %v, want %v", got, want)
	}
	if f := o.Forms["threshold"]; f.Layers == 0 || f.Sent > f.Values*3/4 {
		t.Errorf("%+v", f)
	}
	if o.Reasons["flushed"] == 0 || o.Reasons["flush-failed"] > 0 {
		t.Errorf("%v", o.Reasons)
	}
}

// Where the servers' rule changes every value in each step, an image model trains
// with a hundredth of its pushes and a twentieth of its pulls, while the worker's
// proxies have what the servers' have of it: they would end the links otherwise.
func TestPullsEndToEnd(t *testing.T) {
	pictures := require.Dataset(t, "t10k-images-idx3-ubyte.xz")
	o := Run{
		Hosts: 2, Sidecar: []string{"--threshold", "0.99", "--pull-threshold", "0.95", "--wire", "bf16"},
		Job: []string{"--model", "mlp", "--data", pictures, "--steps", "150", "--batch", "8", "--hidden", "32", "--tensor-block", "4096",
			"--learning-rate", "0.02", "--server-momentum", "0.9", "--l2", "1e-4"},
	}.Do(t)
	t.Log(o)
	if w := o.First(); w.Loss == nil || !(*w.Loss < 1.5) { // 2.3 says nothing
		t.Errorf("the job did not learn: %+v", w)
	}
	f := o.Forms["pull-threshold"]
	if f.Layers == 0 || f.Bytes < 15*f.Encoded {
		t.Errorf("pulls took %s bytes: %+v", o.ratio("pull-threshold"), f)
	}
	if f := o.Forms["threshold"]; f.Layers == 0 || f.Bytes < 80*f.Encoded {
		t.Errorf("pushes took %s bytes: %+v", o.ratio("threshold"), f)
	}
	delete(o.Reasons, "unpulled")
	delete(o.Reasons, "commands") // until psjob's are known as the numbers of steps
	delete(o.Reasons, "not-sent")
	for r, n := range o.Reasons {
		t.Errorf("%s: %d", r, n)
	}
}

// Workers across hosts pull rows and push gradients for them. psjob knows what its
// servers must have, if of each row that came without its smallest values the gradient
// came without the same ones, and checks every row that comes, by sorting, and all of
// them at the end, which come whole. Messages are lost and repeated meanwhile. Values
// take 10 and 20 times fewer bytes.
func TestActivationsEndToEnd(t *testing.T) {
	for _, c := range []struct {
		sparsity string
		fewer    uint64
		env      []string
	}{{"0.9", 10, []string{"PS_RESEND=1", "PS_RESEND_TIMEOUT=200", "PS_DROP_MSG=2"}}, {"0.95", 20, nil}} {
		o := Run{
			Hosts: 2, Sidecar: []string{"--threshold-activations", c.sparsity}, Env: c.env,
			Job: []string{"--model", "rows", "--steps", "60", "--value-length", "512", "--count-keys", "250", "--count-batch", "40", "--rows-sparsity", c.sparsity},
		}.Do(t)
		t.Log(o)
		for _, w := range o.Workers {
			if w.Checked != 250 || w.CutRows < 60*40/4 {
				t.Errorf("%s: of worker %d %d rows were thresholded, %d keys were compared", c.sparsity, w.Rank, w.CutRows, w.Checked)
			}
		}
		pulled, pushed := o.Forms["activations"], o.Forms["masked"]
		if plain, encoded := pulled.Bytes+pushed.Bytes, pulled.Encoded+pushed.Encoded; plain < c.fewer*encoded {
			t.Errorf("%s: %d bytes went as %d", c.sparsity, plain, encoded)
		}
		t.Logf("%s: activations %s, gradients %s, %v", c.sparsity, o.ratio("activations"), o.ratio("masked"), o.Reasons)
	}
}
