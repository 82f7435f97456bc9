package interop

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
)

// keysOfBench is how many scalar keys, spread over the key space, each push
// and each pull has; half of them go to each of two servers.
const keysOfBench = 1_000_000

// BenchmarkMillionKeys has one worker push and pull a million scalar keys on
// loopback, psjob's processes and the C++ peer's in turn, so that what else
// the machine does hits both. It reports the median times, the first round
// left out, and psjob's speed as a multiple of the peer's.
func BenchmarkMillionKeys(b *testing.B) {
	psjob, own := hosts.Program{hoststest.BuildJob(b, "cmd/psjob"), "--json"}, hosts.Program{hoststest.BuildPeer(b)}
	const rounds = 20
	var ours, theirs seconds
	for b.Loop() {
		r := run(b, loopback, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, own), Workers: []hosts.Program{
			append(slices.Clone(own), "--mode", "bench", "--keys", strconv.Itoa(keysOfBench), "--space", strconv.Itoa(keysOfBench), "--rounds", strconv.Itoa(rounds))}})
		w := reports[hoststest.PeerWorker](b, r.Workers)[0]
		theirs.add(w.PushSeconds, w.PullSeconds)

		r = run(b, loopback, hosts.Job{Scheduler: psjob, Servers: hosts.Repeat(2, psjob), Workers: []hosts.Program{
			append(slices.Clone(psjob), "--model", "bench", "--keys", strconv.Itoa(keysOfBench), "--rounds", strconv.Itoa(rounds))}})
		p := reports[psjobWorker](b, r.Workers)[0]
		ours.add(p.PushSeconds, p.PullSeconds)
	}
	b.ReportMetric(0, "ns/op")
	for name, s := range map[string]seconds{"psjob": ours, "peer": theirs} {
		b.ReportMetric(1000*median(s.push), name+"-push-ms")
		b.ReportMetric(1000*median(s.pull), name+"-pull-ms")
	}
	b.ReportMetric((median(theirs.push)+median(theirs.pull))/(median(ours.push)+median(ours.pull)), "psjob/peer")
}

// seconds are the times of many rounds.
type seconds struct{ push, pull []float64 }

// add adds a run's rounds but the first, in which the servers first see the
// keys.
func (s *seconds) add(push, pull []float64) {
	s.push = append(s.push, push[1:]...)
	s.pull = append(s.pull, pull[1:]...)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// BenchmarkPSLite is PS-lite's own benchmark, of 10 million keys, one round,
// whose servers keep nothing; the peer does the same beside it. It tells
// whether the peer is fit to compare with.
func BenchmarkPSLite(b *testing.B) {
	theirs := pslite(b, "test_kv_app_benchmark", "kv_app_benchmark_test")
	own := hosts.Program{hoststest.BuildPeer(b)}
	var push, pull, peerPush, peerPull []float64
	for b.Loop() {
		r := run(b, loopback, hosts.Job{Scheduler: theirs, Servers: hosts.Repeat(2, theirs), Workers: hosts.Repeat(1, theirs)})
		var up, down float64
		said := r.Workers[0].Stderr.String()
		for _, m := range []struct {
			name string
			to   *float64
		}{{"Push", &up}, {"Pull", &down}} {
			_, figure, _ := strings.Cut(said, m.name+" average time cost:")
			if _, err := fmt.Sscanf(figure, "%gms", m.to); err != nil {
				b.Fatalf("PS-lite's benchmark said %q: %v", said, err)
			}
		}
		push, pull = append(push, up), append(pull, down)

		r = run(b, loopback, hosts.Job{Scheduler: own, Servers: hosts.Repeat(2, append(slices.Clone(own), "--discard")), Workers: []hosts.Program{
			append(slices.Clone(own), "--mode", "bench", "--keys", "10000000", "--space", "10000000", "--rounds", "1")}})
		w := reports[hoststest.PeerWorker](b, r.Workers)[0]
		peerPush, peerPull = append(peerPush, 1000*w.PushSeconds[0]), append(peerPull, 1000*w.PullSeconds[0])
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(push), "PS-lite-push-ms")
	b.ReportMetric(median(pull), "PS-lite-pull-ms")
	b.ReportMetric(median(peerPush), "peer-push-ms")
	b.ReportMetric(median(peerPull), "peer-pull-ms")
}
