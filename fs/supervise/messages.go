package supervise

import "os"

const (
	msgPrepared = "prepared" // worker: it could serve
	msgServe    = "serve"    // supervisor: serve, no other worker does any more
	msgServing  = "serving"  // worker
	msgLeave    = "go"       // supervisor: end, another process will serve
	msgPing     = "ping"     // supervisor
	msgPong     = "pong"     // worker
	msgSnapshot = "snapshot" // worker: a file for its successors to begin from
	msgRefused  = "refused " // worker: it cannot serve; the reason follows
)

type message struct {
	text string
	file *os.File // the snapshot, or nil
}
