package codecs

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// lossless are sidecars' flags by which no value is changed: keys of so many ids are
// elsewhere, messages encoded, and of answers only what has changed goes.
func lossless(t *testing.T, ids int) []string {
	t.Helper()
	return []string{"--placement", swap(t, ids), "--codec", "compact", "--unchanged"}
}

// A job whose workers do not wait for each other ends otherwise each time. With placed
// keys, and all that loses nothing, its model is as good as without, whatever its servers
// do with a push. The bound is far more than runs differ by.
func TestModelsOfWorkersThatDoNotWait(t *testing.T) {
	const ids = 2000
	train, test := texts(t, ids)
	for _, rule := range []string{"sgd", "adagrad", "ftrl"} {
		t.Run(rule, func(t *testing.T) {
			job := []string{"--data", train, "--test", test, "--rule", rule, "--epochs", "3", "--batch", "100"}
			direct, beside := auc(t, job, nil), auc(t, job, lossless(t, ids+1))
			t.Logf("AUC %.4f, without a sidecar %.4f", beside, direct)
			if direct < 0.7 || math.Abs(beside-direct) > 0.02 {
				t.Errorf("AUC %.4f, without a sidecar %.4f", beside, direct)
			}
		})
	}
}

// texts makes samples with so many features, four fifths of them to train with.
func texts(t *testing.T, features int) (train, test string) {
	t.Helper()
	all, err := exec.CommandContext(t.Context(), build(t, "cmd/psjob"), "generate", "--features", strconv.Itoa(features), "--samples", "5000", "--words", "30", "--noise", "0.05").Output()
	require.NoError(t, err)
	lines := slices.Collect(bytes.Lines(all))
	files := map[string][][]byte{"train": lines[:len(lines)/5*4], "test": lines[len(lines)/5*4:]}
	dir := t.TempDir()
	for name, part := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.Join(part, nil), 0o600))
	}
	return filepath.Join(dir, "train"), filepath.Join(dir, "test")
}

// auc returns that of a model which four workers train on two hosts, none of which waits
// for another.
func auc(t *testing.T, job, flags []string) float64 {
	t.Helper()
	o := Run{Hosts: 2, Workers: 4, Direct: flags == nil, Sidecar: flags, Job: append([]string{"--model", "lr", "--async"}, job...)}.Do(t)
	r := o.First()
	if r.TestAUC == nil {
		t.Fatal("no AUC is told")
	}
	return *r.TestAUC
}

// The same for a table, three times each, with Criteo's clicks.
func TestAUCOfClicks(t *testing.T) {
	require.Measurement(t)
	data := require.Dataset(t, "criteo-80k.libsvm.xz")
	for _, rule := range []struct{ name, rate string }{{"sgd", "30"}, {"adagrad", "0.3"}, {"ftrl", "1"}} {
		var sums [2]float64
		for seed := range 3 {
			job := []string{"--data", data, "--test", data, "--rule", rule.name, "--learning-rate", rule.rate, "--epochs", "1", "--batch", "64", "--seed", strconv.Itoa(seed + 1)}
			for i, flags := range [][]string{nil, lossless(t, 100_000)} {
				got := auc(t, job, flags)
				t.Logf("%s, seed %d, sidecars %v: AUC %.5f", rule.name, seed+1, flags != nil, got)
				sums[i] += got
			}
		}
		t.Logf("%s: AUC %.5f, without sidecars %.5f", rule.name, sums[1]/3, sums[0]/3)
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
