package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// throwReports throws what a planner takes in.
func (x *thrower) throwReports(source *hosts.Host) {
	f := x.f
	many, large := reportOf("bomb", uses(7<<20)), reportOf("many", uses(16))
	x.throw("a report of a few kilobytes that takes 2 GiB", 2, func(ctx context.Context) error { return f.report(ctx, source, many) })
	x.throw("reports of thousands of jobs", 1, func(ctx context.Context) error {
		for range 40 {
			large = append(large, reportOf(fmt.Sprint(source.IPv4, ":", rand.Uint32()), uses(16))...)
		}
		if len(large) > 1<<20 {
			large = nil
		}
		return f.report(ctx, source, large)
	})
	x.throw("hundreds of runs that a proxy carries", 1, func(ctx context.Context) error { return f.watchRuns(ctx, source) })
}

// uses is n empty entries of a job's report.
func uses(n int) (b []byte) {
	for range n {
		b = protowire.AppendBytes(protowire.AppendTag(b, 14, protowire.BytesType), nil)
	}
	return b
}

// reportOf is a host's report of one job, as it is on the wire.
func reportOf(job string, rest []byte) (b []byte) {
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), "bomb")
	j := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), job)
	return protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), append(j, rest...))
}

// raw is a codec for messages that are bytes already.
type raw struct{ encoding.CodecV2 }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// planning calls the planner from a host.
func (f *fleet) planning(from *hosts.Host) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:"+f.net.Host(0).Address(plannerAPI), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return from.Dial(ctx, "tcp", address) }))
}

// report sends the planner a report, compressed.
func (f *fleet) report(ctx context.Context, from *hosts.Host, report []byte) error {
	conn, err := f.planning(from)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, api.Planner_Report_FullMethodName,
		grpc.UseCompressor(gzip.Name), grpc.ForceCodecV2(raw{encoding.GetCodecV2("proto")}))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(report); err != nil {
		return err
	}
	_ = stream.RecvMsg(new(api.Taken)) // taken or refused
	return nil
}

// watchRuns tells the planner of many runs that a proxy carries, of as many jobs,
// and waits until it has heard of them.
func (f *fleet) watchRuns(ctx context.Context, from *hosts.Host) error {
	conn, err := f.planning(from)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r := &api.WatchRequest{Host: "bomb"}
	for range 512 {
		r.Runs = append(r.Runs, &api.Running{Job: fmt.Sprint(from.IPv4, ":", rand.Uint32()), Run: string(plan.NewRun("", time.Now(), rand.Uint64())), Servers: 4096, Used: true})
	}
	stream, err := api.NewPlansClient(conn).Watch(ctx, r)
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// lurk starts a thousand processes with the environment of nodes, and some with
// a hosts file that has no end, or does not say anything.
func (f *fleet) lurk(on *hosts.Host) {
	t := f.t
	t.Helper()
	sh, unshare, mkfifo := require.Program(t, "sh"), require.Program(t, "unshare"), require.Program(t, "mkfifo")
	env := append(os.Environ(), "DMLC_ROLE=worker", "DMLC_NUM_SERVER=4096", "DMLC_NUM_WORKER=4096", "DMLC_PS_ROOT_PORT=9000")
	many := exec.Command(sh, "-c", `for i in $(seq 1000); do DMLC_PS_ROOT_URI=trap$i sleep 100000 >/dev/null 2>&1 & done; echo started; wait`)
	many.Env = env
	hoststest.Start(t, on, "evil", many).Line()
	fifo := filepath.Join(folder(t), "fifo")
	if text, err := exec.Command(mkfifo, fifo).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, text)
	}
	for i, file := range []string{"/proc/self/pagemap", "/dev/zero", fifo} {
		for j := range 20 {
			trap := exec.Command(unshare, "--mount", sh, "-c", `mount --bind "$0" /etc/hosts && echo started && exec sleep 100000`, file)
			trap.Env = append(env, fmt.Sprintf("DMLC_PS_ROOT_URI=trap%d-%d", i, j))
			hoststest.Start(t, on, "evil", trap).Line()
		}
	}
}
