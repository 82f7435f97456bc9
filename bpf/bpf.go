// Package bpf watches PS-lite traffic from inside the kernel without touching it.
// Programs on the cgroup_skb hooks of a job's cgroup see every TCP segment its
// processes send (and, where asked, receive), follow the ZMTP frames of each
// connection, and copy out the frames that show which worker uses which parameter:
// the meta frame of every message, the key and length frames of sampled requests.
// Values are stepped over and counted. The programs always let the packet pass, and
// whatever they could not look at is counted with its reason ([Reason]).
//
// In comes a cgroup path ([Capture.Attach]) and a sampling rate
// ([Capture.SetSampling], [Sampling]); out come [Record] values
// ([Capture.Read]), exact totals per connection ([Capture.Connections]), the
// counters ([Capture.Counts]) and the programs' own run time
// ([Capture.ProgramStats]). The agent calls it. Nothing is pinned: when the
// process ends, however it ends, nothing stays attached.
//
// The C sources beside this file are compiled by go generate; the object is
// committed, so building needs no clang.
//
// # Probes
//
// [CheckFacts] reports what psidecar needs of a host and whether it is there.
// [GatherFacts] collects the facts: kernel release, capabilities, mounts, and the
// kernel's answer to loading a program that uses a feature. Each [Finding] says what
// to do and what works without it. Facts are plain data, so those of a host can be
// recorded and judged elsewhere. psidecar doctor and the agent call it.
package bpf

//go:generate go run ./internal/reasons
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -go-package bpf capture capture.c -- -O2 -mcpu=v3 -Wall -Werror -Wno-unused-function
