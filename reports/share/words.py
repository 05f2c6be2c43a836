"""Words of the suite. They stay in sentences even if a machine has such a name."""

from __future__ import annotations

TEXT = """
able about accelerator accelerators accepted actor actors add address adds after again against
agree agreed agreeing alert alive all allgather allocation allows allreduce alltoall alone alpha
altered an and another answer answered answers any anything apart are arithmetic as ask asked asks
at attempt attempts auto back backward bandwidth base be because before began begin behind below
best beta better between big bit bitwise blow boot both breaks broadcast broken bucket built bus
busbw busy but by byte bytes cable call called came can cancelled cancels cannot capacity caption
cause cell change changed check checked checkpoint checkpoints chose clean clock close cluster
code collective collectives come command commands commit communication compare compared competing
complete component compute conf connection consistent container contention contract control
controls copy core cores correct could count counted counts covers cpu cpus criteria criterion
cuda cut damaged dashboard data dead deadlock decision default delay derived detector device
devices did die died differ difference different digest dir direction disable disk do docker
doctored documented does done down driver drivers drops each efficiency eight element elements
else email embedded emulated enable end ended ends env environment equal error errors etc eth
every evidence exact exactly exception exit expected explain explained export fab fabric fail
failed fails failure false far fast fault faults few fewer file files fill final find finding
findings finished first fit fits five fixed flipped folder follow followed follows for forced
forward found four free from full gang gangs gap gather gave gbs get give given gives gloo go goes
gpu gpus gradient group groups guid half hangs happened hardware has have head held help here high
higher hold holds host hostname hosts how ib id idle ids if ifname image in index infiniband info
inform init injected install installed instead interface interrupted into inventory ip is it its
itself job jobs join joined judged keep keeps kernel kill killed kills kind known kubernetes lab
ladder lag large larger largest last late latency later launch launcher layer learn leaves left
less lets level library life limit limits line linear link links list load loaded local log logs
long longer longest look lose loss lost low lower machine machines made main management manager
manual many margin marginal master match may means measure measured measurement memory met
metadata might min minutes misplaced missing mode model module moment more most mount moves ms mtu
must name named names nan nccl ndr need needs net network never new newest next nic no nobody node
nodes noise non none norm not note nothing notice now num number nvidia nvlink nvml of off often
old on once one ones only onto open optimizer option or order ordered ordinary other others out
outcome over overhead own pace paced packet packets page pair pairs parallel parity part partial
partially parts pass passed passes path paths peak peer pending per percent performance place
placed placement plugin pod port ports position power predicted preload probe probes process
processes promised proof prove proven pytest python queue quick quota rack rail rails ram ran
random range rank ranks rate rather ratio ray raylet raylets rdma reach read ready real reason
reasons reboot received record recovery reduce reference refused rehearsal rehearsed release
released remedy remove removed repeated replace replayed report resource restart result results
resume resumed resumes retries right ring road room root rounds route run rung rungs running runs
runtime said same sample samples sampling save saved saves saw say says scales scaling scatter
scheduler scheduling second seconds see seen sees send sender sends sentences serial series server
service set setting settings seven several shape share shared shell shm should show shown shows
signed silent simulated since single site six size sizes skipped sleep sleeps slot slow slower
slowest slurm small so soak socket sockets software some sound source spare speed spine spread
stack standard start started starts state statement status step steps still stop stopped storage
store straggler straight struck submitted such sum sweep switch system take taken takes task tcp
tell tells ten term terms test tests text than that the their them then there these they third
this thread threads three throttle through tick tier time timed title titles to together token
tokens told too took torch torn total trace train trainer training transcript transport tree trial
tried true try turn turns twice two unattributed under unequal unexplained uniform unit units
unjoined unknown unlimited unproven unreachable until up us use used user users uses uuid value
values variable version versions victim visible wait waited waiting waits wall want was wave way
well went were what when where which while who whole whose why width will window with within
without work worker workers works world would write written wrong year you your zero
a100 b200 eth0 gb200 h100 h200 ib0 l40s mi250x mi300x v100
"""
WORDS = frozenset(TEXT.split())
