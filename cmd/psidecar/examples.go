package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are those of each command's help, by its path below psidecar. Each line
// is a command line, with its purpose behind a #; a test checks that their flags
// exist.
var examples = map[string]string{
	"agent": `psidecar agent                                    # watch this host; page at http://127.0.0.1:9810/
psidecar agent --planner planner-host:9811        # also report to a planner
psidecar agent --intercept --planner planner-host:9811   # also redirect connections to psidecar proxy`,
	"certs": `psidecar certs --host node1,10.0.0.1 --out certs   # a CA, and certificates for one host
psidecar certs --host node1 --host node2 --role agent,proxy,planner --out certs   # for psidecar up`,
	"check": `psidecar check --agents 127.0.0.1:9810 --proxies 127.0.0.1:9813   # this host
psidecar check --agents node1:9810,node2:9810 --planners planner-host:9812 --patience 1m`,
	"debug":  `psidecar debug --out debug.tar.gz`,
	"decode": `psidecar decode capture.pcapng --json   # one JSON object per message`,
	"demo": `psidecar demo                     # six phases, a minute and a half
psidecar demo --hosts 2 --hold    # keep the page up at the end`,
	"doctor": `psidecar doctor    # what this host lacks, and how to fix it`,
	"hash":   `psidecar hash --input rcv1.libsvm --hash-bins 256 --out hashed.libsvm`,
	"heatmap": `psidecar heatmap                          # in the terminal
psidecar heatmap --job 10.0.0.1:8000 --measure bytes --png bytes.png
psidecar heatmap --first 0 --last 99999 --names names.yaml`,
	"names": `psidecar names show`,
	"names show": `psidecar names show
psidecar names show --agent planner-host:9812`,
	"partition": `psidecar partition --input rcv1.libsvm -k 8 --out parts
psidecar partition --input rcv1.libsvm -k 8 --all   # compare all algorithms`,
	"plan":           `psidecar plan show`,
	"plan apply":     `psidecar plan apply --job 10.0.0.1:8000 --wait 30s`,
	"plan aggregate": `psidecar plan aggregate show`,
	"plan aggregate show": `psidecar plan aggregate show --agent planner-host:9812
psidecar plan aggregate show job.psr --machines 8 --each 4   # from a recording, as if on 8 machines`,
	"plan aggregate apply": `psidecar plan aggregate apply --job 10.0.0.1:8000         # dry run of what show proposes
psidecar plan aggregate apply --job 10.0.0.1:8000 --act   # apply
psidecar plan aggregate apply --job 10.0.0.1:8000 --keys 0-99999 --form none --act`,
	"plan aggregate clear": `psidecar plan aggregate clear --job 10.0.0.1:8000 --act`,
	"plan codecs":          `psidecar plan codecs show`,
	"plan codecs set": `psidecar plan codecs set --job 10.0.0.1:8000 --threshold 0.99         # dry run
psidecar plan codecs set --job 10.0.0.1:8000 --threshold 0.99 --act   # apply`,
	"plan codecs clear": `psidecar plan codecs clear --job 10.0.0.1:8000 --act`,
	"plan codecs drain": `psidecar plan codecs drain --job 10.0.0.1:8000 --steps 100 --within 10m --act`,
	"plan codecs show":  `psidecar plan codecs show --job 10.0.0.1:8000`,
	"plan codecs try":   `psidecar plan codecs try`,
	"plan forget":       `psidecar plan forget --job 10.0.0.1:8000`,
	"plan rollback":     `psidecar plan rollback --job 10.0.0.1:8000`,
	"plan show":         `psidecar plan show --planner planner-host:9811`,
	"planner": `psidecar planner --listen :9811 --http :9812 --insecure   # trusted networks only
psidecar planner --listen :9811 --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key --store plans.db`,
	"proxy": `psidecar proxy --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key
psidecar proxy --insecure --save 0.99 --planner planner-host:9811`,
	"record":  `psidecar record --out job.psr --for 20s`,
	"restore": `psidecar restore --job 10.0.0.1:8000 --wait 30s`,
	"runs": `psidecar runs --job ads/ctr                       # compare the runs of a job
psidecar runs --planner-http planner-host:9812 --json`,
	"score":    `psidecar score --input rcv1.libsvm --assignment mine.txt -k 8`,
	"show":     `psidecar show job.psr other.psr      # compare two runs`,
	"simulate": `psidecar simulate job.psr             # the savings of moving its keys`,
	"status": `psidecar status                                  # this host's agent
psidecar status --agent planner-host:9812         # all hosts
psidecar status --agent "" --proxy 127.0.0.1:9813 # only a proxy`,
	"top":    `psidecar top    # live status`,
	"unload": `psidecar unload    # when psidecar no longer runs on this host`,
	"up": `psidecar up --insecure                                        # on the first host; trusted networks only
psidecar up --insecure --planner first-host:9811              # on the other hosts
psidecar up --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key                              # the same with certificates
psidecar up --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key --planner first-host:9811
psidecar up --insecure --save 0.99                            # hold back 99% of pushed values until they add up`,
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
