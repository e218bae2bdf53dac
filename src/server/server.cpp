#include "server/server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <list>
#include <vector>

#ifdef __linux__
#include <netinet/tcp.h>
#endif

#include "base/log.h"
#include "server/connection.h"
#include "server/core.h"

namespace lily {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 256;

// Peers that vanish without a word are noticed by the system: probes when idle, unacknowledged data
// otherwise.
void configure(tcp::socket& socket, const ServerOptions& options) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  if (options.send_buffer_bytes > 0) {
    socket.set_option(asio::socket_base::send_buffer_size(static_cast<int>(options.send_buffer_bytes)),
                      ignored);
  }
#ifdef __linux__
  constexpr int kProbeSeconds = 20;
  using Seconds = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Between = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Timeout = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;
  socket.set_option(Seconds(kProbeSeconds), ignored);
  socket.set_option(Between(kProbeSeconds / 2), ignored);
  socket.set_option(Timeout(static_cast<int>(options.timeouts.write.count())), ignored);
#endif
}

Result<std::vector<tcp::endpoint>> resolve(asio::io_context& io, const ServerOptions& options) {
  error_code ec;
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec) {
    return fail(ErrorKind::invalid_input, "cannot find the address '{}' to listen on: {}", options.host,
                ec.message());
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) {
      endpoints.push_back(endpoint);
    }
  }
  return endpoints;
}

Result<void> check_exposure(const std::vector<tcp::endpoint>& endpoints, const ServerOptions& options) {
  if (!options.api_keys.empty() || options.allow_anonymous) {
    return {};
  }
  for (const tcp::endpoint& endpoint : endpoints) {
    if (!endpoint.address().is_loopback()) {
      return fail(
          ErrorKind::invalid_input,
          "listening on {} lets other machines in: give an API key (--api-key) or say --allow-anonymous",
          endpoint.address().to_string());
    }
  }
  return {};
}

void open_acceptor(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, error_code& ec) {
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) {
    acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  }
  if (!ec && endpoint.address().is_v6()) {
    error_code ignored;  // "::" also takes IPv4 where the system can
    acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ignored);
  }
  if (!ec) {
    acceptor.bind(endpoint, ec);
  }
  if (!ec) {
    acceptor.listen(kBacklog, ec);
  }
}

}  // namespace

std::string Core::new_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr int kLength = 24;
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id;
  for (int i = 0; i < kLength; ++i) {
    id += kLetters[pick(random)];
  }
  return id;
}

struct Server::Impl {
  explicit Impl(ServerOptions options) : core(std::move(options)) {}

  Result<void> open();
  asio::awaitable<void> accept(tcp::acceptor& acceptor);
  void close_acceptors();
  void for_each(void (Connection::*action)());
  bool wait_ended(ServerTimeouts::Time most);

  Core core;
  std::list<tcp::acceptor> acceptors;  // destroyed before the io_context in `core`
  std::string host;                    // of the first address
  uint16_t port = 0;
};

// Listens on every address of the host, all with the same port; one that works is enough.
Result<void> Server::Impl::open() {
  LILY_TRY(std::vector<tcp::endpoint> endpoints, resolve(core.io, core.options));
  LILY_TRY_VOID(check_exposure(endpoints, core.options));
  std::string faults;
  for (tcp::endpoint endpoint : endpoints) {
    if (port != 0) {
      endpoint.port(port);
    }
    tcp::acceptor acceptor(core.io);
    error_code ec;
    open_acceptor(acceptor, endpoint, ec);
    if (ec) {
      faults +=
          fmt::format("{}{}: {}", faults.empty() ? "" : "; ", endpoint.address().to_string(), ec.message());
      continue;
    }
    if (acceptors.empty()) {
      port = acceptor.local_endpoint(ec).port();
      const std::string address = endpoint.address().to_string();
      host = endpoint.address().is_v6() ? "[" + address + "]" : address;
    }
    acceptors.push_back(std::move(acceptor));
  }
  if (acceptors.empty()) {
    return fail(ErrorKind::io, "cannot listen on {}:{}: {}", core.options.host, core.options.port, faults);
  }
  return {};
}

asio::awaitable<void> Server::Impl::accept(tcp::acceptor& acceptor) {
  asio::steady_timer pause(core.io);
  bool told = false;  // once, not ten times a second
  while (acceptor.is_open()) {
    error_code ec;
    tcp::socket socket(core.io);
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
    if (!acceptor.is_open()) {
      break;
    }
    if (ec) {  // out of file descriptors, most likely: those who leave make room
      if (!told) {
        log_warn("cannot accept connections for now: {}", ec.message());
      }
      told = true;
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    told = false;
    try {
      configure(socket, core.options);
      std::make_shared<Connection>(std::move(socket), core)->start();
    } catch (const std::exception& fault) {
      log_error("cannot serve a connection: {}", fault.what());
    }
  }
}

void Server::Impl::close_acceptors() {
  for (tcp::acceptor& acceptor : acceptors) {
    error_code ignored;
    acceptor.close(ignored);
  }
}

void Server::Impl::for_each(void (Connection::*action)()) {
  std::vector<std::shared_ptr<Connection>> alive;  // an action may end a connection and change the map
  for (const auto& entry : core.connections) {
    if (std::shared_ptr<Connection> connection = entry.second.lock()) {
      alive.push_back(std::move(connection));
    }
  }
  for (const std::shared_ptr<Connection>& connection : alive) {
    ((*connection).*action)();
  }
}

bool Server::Impl::wait_ended(ServerTimeouts::Time most) {
  std::unique_lock<std::mutex> lock(core.mutex);
  return core.ended.wait_for(lock, most, [this] { return !core.running; });
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  impl_->core.workers.stop();
  impl_->core.workers.join();
}

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  LILY_TRY_VOID(impl->open());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->port; }

std::string Server::url() const {
  const std::string& host = impl_->host;
  const bool any = host == "0.0.0.0" || host == "[::]";
  return fmt::format("http://{}:{}", any ? "127.0.0.1" : host, impl_->port);
}

void Server::run() {
  Impl& impl = *impl_;
  {
    const std::lock_guard<std::mutex> lock(impl.core.mutex);
    impl.core.running = true;
  }
  for (tcp::acceptor& acceptor : impl.acceptors) {
    asio::co_spawn(impl.core.io, impl.accept(acceptor), asio::detached);
  }
  bool over = false;
  while (!over) {
    try {
      impl.core.io.run();  // until nothing accepts and no connection is left
      over = true;
    } catch (const std::exception& fault) {
      log_error("serving goes on after a fault: {}", fault.what());
    }
  }
  const std::lock_guard<std::mutex> lock(impl.core.mutex);
  impl.core.running = false;
  impl.core.ended.notify_all();
}

void Server::attach(ServedModel model) { impl_->core.attach(std::move(model)); }

void Server::drain(double seconds) {
  Impl& impl = *impl_;
  impl.core.draining = true;
  asio::post(impl.core.io, [&impl] {
    impl.close_acceptors();
    impl.for_each(&Connection::begin_drain);
  });
  if (const std::shared_ptr<const ServedModel> model = impl.core.model()) {
    model->engine->drain(seconds);
  }
  if (!impl.wait_ended(impl.core.options.timeouts.flush)) {
    stop();
    impl.wait_ended(impl.core.options.timeouts.flush);
  }
}

void Server::stop() {
  Impl& impl = *impl_;
  impl.core.draining = true;
  asio::post(impl.core.io, [&impl] {
    impl.close_acceptors();
    impl.for_each(&Connection::close);
  });
}

}  // namespace lily
