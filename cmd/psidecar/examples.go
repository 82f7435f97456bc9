package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are those of each command's help, by its path below psidecar. Each line
// is a command line, with what it is for behind a #; a test holds that their flags
// exist.
var examples = map[string]string{
	"agent": `psidecar agent                                    # watch this host; the page is http://127.0.0.1:9810/
psidecar agent --planner planner-host:9811        # and report to a planner
psidecar agent --intercept --planner planner-host:9811   # and send connections to psidecar proxy`,
	"certs": `psidecar certs --host node1,10.0.0.1 --out certs   # an authority, and certificates of a host`,
	"check": `psidecar check --agents 127.0.0.1:9810 --proxies 127.0.0.1:9813   # of this host
psidecar check --agents node1:9810,node2:9810 --planners planner-host:9812 --patience 1m`,
	"debug":  `psidecar debug --out debug.tar.gz`,
	"decode": `psidecar decode capture.pcapng --json   # a JSON object for each message`,
	"demo": `psidecar demo                     # six phases, in about two minutes
psidecar demo --hosts 2 --hold    # keep the page up at the end`,
	"doctor": `psidecar doctor    # what this host lacks, and what to do`,
	"hash":   `psidecar hash --input rcv1.libsvm --hash-bins 256 --out hashed.libsvm`,
	"heatmap": `psidecar heatmap                          # in the terminal
psidecar heatmap --job 10.0.0.1:8000 --measure bytes --png bytes.png
psidecar heatmap --first 0 --last 99999 --names names.yaml`,
	"names": `psidecar names show`,
	"names set": `psidecar names set names.yaml    # agent, planner and up on this host, until they end
psidecar names set names.csv --control-socket /run/psidecar/names.sock   # the agent alone`,
	"names show": `psidecar names show
psidecar names show --agent planner-host:9812 --csv   # as --names reads it`,
	"partition": `psidecar partition --input rcv1.libsvm -k 8 --out parts
psidecar partition --input rcv1.libsvm -k 8 --all --plot traffic.png   # all algorithms beside each other`,
	"plan":           `psidecar plan show`,
	"plan apply":     `psidecar plan apply --job 10.0.0.1:8000 --wait 30s`,
	"plan aggregate": `psidecar plan aggregate show`,
	"plan aggregate show": `psidecar plan aggregate show --agent planner-host:9812
psidecar plan aggregate show job.psr --machines 8 --each 4   # of a recording, as if on 8 machines`,
	"plan aggregate apply": `psidecar plan aggregate apply --job 10.0.0.1:8000         # what show proposes: says what it would do
psidecar plan aggregate apply --job 10.0.0.1:8000 --act   # and does it
psidecar plan aggregate apply --job 10.0.0.1:8000 --keys 0-99999 --form none --act`,
	"plan aggregate clear": `psidecar plan aggregate clear --job 10.0.0.1:8000 --act`,
	"plan codecs":          `psidecar plan codecs show`,
	"plan codecs set": `psidecar plan codecs set --job 10.0.0.1:8000 --threshold 0.99         # says what it would do
psidecar plan codecs set --job 10.0.0.1:8000 --threshold 0.99 --act   # and does it`,
	"plan codecs clear": `psidecar plan codecs clear --job 10.0.0.1:8000 --act`,
	"plan codecs drain": `psidecar plan codecs drain --job 10.0.0.1:8000 --steps 100 --act`,
	"plan codecs show":  `psidecar plan codecs show --job 10.0.0.1:8000`,
	"plan codecs try":   `psidecar plan codecs try`,
	"plan forget":       `psidecar plan forget --job 10.0.0.1:8000`,
	"plan rollback":     `psidecar plan rollback --job 10.0.0.1:8000`,
	"plan show":         `psidecar plan show --planner planner-host:9811`,
	"planner": `psidecar planner --listen :9811 --http :9812 --insecure   # in a network that is trusted
psidecar planner --listen :9811 --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key --store plans.db`,
	"proxy": `psidecar proxy --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key
psidecar proxy --insecure --threshold 0.99 --planner planner-host:9811`,
	"record":  `psidecar record --out job.psr --for 20s`,
	"restore": `psidecar restore --job 10.0.0.1:8000 --wait 30s`,
	"runs": `psidecar runs --job ads/ctr                       # each run of a job, beside the others
psidecar runs --planner-http planner-host:9812 --json`,
	"score":    `psidecar score --input rcv1.libsvm --assignment mine.txt -k 8`,
	"show":     `psidecar show job.psr other.psr      # one run beside another`,
	"simulate": `psidecar simulate job.psr             # what moving its keys would have saved`,
	"simulate fleet": `psidecar simulate fleet                                 # 100 hosts, two jobs of 1e9 keys: two minutes
psidecar simulate fleet --hosts 1000 --dense --json     # neighbouring keys, which move as ranges`,
	"status": `psidecar status                                  # of this host's agent
psidecar status --agent planner-host:9812         # of all hosts
psidecar status --agent "" --proxy 127.0.0.1:9813 # of a proxy alone`,
	"top":    `psidecar top    # status that goes on`,
	"unload": `psidecar unload    # when no psidecar runs here any more`,
	"up": `psidecar up --insecure                                        # on one host, in a network that is trusted
psidecar up --insecure --planner first-host:9811              # on the others
psidecar up --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key --threshold 0.99`,
	"version": `psidecar version --json`,
}

// addExamples puts the examples into the help of all commands below cmd. A command that sets
// its own Example keeps it.
func addExamples(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if text, ok := examples[strings.TrimPrefix(sub.CommandPath(), cmd.Root().Name()+" ")]; ok && sub.Example == "" {
			sub.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
		}
		addExamples(sub)
	}
}
